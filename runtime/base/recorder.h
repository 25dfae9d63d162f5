// Recorder: the last events of this process, as a flight recorder keeps them.
//
// A ring of fixed-size events in a memfd that the launcher holds too, or in a file, so that it can
// be read after the process was killed. One per process; it outlives inits. Any thread adds events;
// the cost is a clock read and some stores. Who reads: launcher/recorder.py, after the end of the
// job or beside a running one.
//
// Layout (little endian, version 1): a page with the header below, then `capacity` events. An event
// whose `number` is not its place modulo capacity is empty or was being written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace horon {

enum class EventKind : uint16_t {
  kJoined = 1,     // text: transport and controller; value: size of the job
  kSubmitted = 2,  // text: tensor; value: bytes
  kWaits = 3,      // text: tensor; a user thread sleeps for it
  kStarted = 4,    // text: first tensor of a bucket; value: its bytes
  kFinished = 5,   // text: first tensor of a bucket; value: its number of tensors
  kFailed = 6,     // text: tensor and why
  kLost = 7,       // text: which rank was lost, and how
  kLeft = 9,       // this rank left the job in peace
};

struct RecordedEvent {
  static constexpr int kTextWords = 12;
  std::atomic<uint64_t> number;  // 1 + how many came before it; written last
  std::atomic<uint64_t> time;    // ns since 1970
  std::atomic<uint64_t> what;    // kind, bytes of text << 16, thread id << 32
  std::atomic<int64_t> value;
  std::atomic<uint64_t> text[kTextWords];
};
static_assert(sizeof(RecordedEvent) == 128);

struct RecorderHeader {
  char magic[8];  // "HORONREC"
  uint32_t version, event_bytes;
  uint64_t capacity;
  int32_t pid, rank;
  char host[64];
  alignas(64) std::atomic<uint64_t> next;  // events so far
};

class Recorder {
 public:
  // Keeps at least `events`, up to the next power of two.
  // In anonymous memory with a descriptor to hand on, or in the file `path`, which is replaced.
  static Result<std::shared_ptr<Recorder>> InMemory(int64_t events);
  static Result<std::shared_ptr<Recorder>> InFile(const std::string& path, int64_t events);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Any thread, never blocks. Of a long name the end is kept, where names differ; of a long
  // sentence the start.
  void Add(EventKind kind, std::string_view text, int64_t value = 0);
  // For what lasts: does nothing where it is what this thread has added last. `which` is not 0 and
  // tells it from others, whatever their texts.
  void AddOnce(EventKind kind, std::string_view text, uint64_t which);
  void SetRank(int rank) { header_->rank = rank; }
  int fd() const { return fd_; }
  int64_t bytes() const { return bytes_; }

 private:
  Recorder(int fd, int64_t bytes, void* base, int64_t events);
  static Result<std::shared_ptr<Recorder>> Map(int fd, int64_t wanted, bool in_file);
  int fd_;
  int64_t bytes_;
  uint64_t mask_;
  RecorderHeader* header_;
  RecordedEvent* events_;
};

// Adds if there is a recorder.
inline void Record(const std::shared_ptr<Recorder>& recorder, EventKind kind, std::string_view text,
                   int64_t value = 0) {
  if (recorder) recorder->Add(kind, text, value);
}

}  // namespace horon
