#include "runtime/base/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "runtime/base/own_descriptors.h"
#include "runtime/base/system_error.h"
#include "runtime/base/utf8.h"

namespace horon {
namespace {

constexpr int64_t kHeaderBytes = 4096;
static_assert(sizeof(RecorderHeader) <= kHeaderBytes);

uint64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Constant initialisation: nothing to look up but the word. A forked child adds no events, so it
// needs no other number.
struct OfThread {
  uint32_t id = 0;
  uint64_t lasting = 0;  // what it has added last with AddOnce; 0: something else
};
thread_local OfThread of_thread;

OfThread& OfThisThread() {
  OfThread& mine = of_thread;
  if (mine.id == 0) [[unlikely]]
    mine.id = static_cast<uint32_t>(syscall(SYS_gettid));
  return mine;
}

// Whole words in moves of a known size, which a compiler makes without calling memcpy.
void Store(std::string_view text, std::atomic<uint64_t>* words) {
  uint64_t word = 0;
  while (text.size() >= sizeof(word)) {
    std::memcpy(&word, text.data(), sizeof(word));
    words++->store(word, std::memory_order_relaxed);
    text.remove_prefix(sizeof(word));
  }
  if (text.empty()) return;
  word = 0;
  std::memcpy(&word, text.data(), text.size());
  words->store(word, std::memory_order_relaxed);
}

// A ring is long, so its next events are in no cache.
constexpr uint64_t kAhead = 4;
void Prefetch(const RecordedEvent& event) {
  const auto* const at = reinterpret_cast<const char*>(&event);
  for (size_t line = 0; line < sizeof(event); line += 64) __builtin_prefetch(at + line, 1);
}

Status Failed(const std::string& what) {
  return Status::Unavailable("the flight recorder cannot be made: " + what + ": " +
                             SystemError(errno));
}

}  // namespace

Recorder::Recorder(int fd, int64_t bytes, void* base, int64_t events)
    : fd_(Own(fd)),
      bytes_(bytes),
      mask_(static_cast<uint64_t>(events) - 1),
      header_(new(base) RecorderHeader{}),
      events_(reinterpret_cast<RecordedEvent*>(static_cast<std::byte*>(base) + kHeaderBytes)) {
  std::memcpy(header_->magic, "HORONREC", sizeof(header_->magic));
  header_->version = 1;
  header_->event_bytes = sizeof(RecordedEvent);
  header_->capacity = static_cast<uint64_t>(events);
  header_->pid = getpid();
  header_->rank = -1;
  gethostname(header_->host, sizeof(header_->host) - 1);
}

Recorder::~Recorder() {
  munmap(header_, static_cast<size_t>(bytes_));
  CloseOwn(fd_);
}

// A file gets its room on the disk at once: a full disk would later be a SIGBUS.
Result<std::shared_ptr<Recorder>> Recorder::Map(int fd, int64_t wanted, bool in_file) {
  const auto events = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted)));
  const int64_t bytes = kHeaderBytes + events * static_cast<int64_t>(sizeof(RecordedEvent));
  void* base = MAP_FAILED;
  errno = in_file ? posix_fallocate(fd, 0, bytes) : 0;
  if (errno == 0 && ftruncate(fd, bytes) == 0)
    base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const Status status = Failed("mapping " + std::to_string(bytes) + " bytes");
    close(fd);
    return status;
  }
  madvise(base, static_cast<size_t>(bytes), MADV_DONTFORK);
  return std::shared_ptr<Recorder>(new Recorder(fd, bytes, base, events));
}

Result<std::shared_ptr<Recorder>> Recorder::InMemory(int64_t events) {
  const int fd = memfd_create("horon-recorder", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  return Map(fd, events, false);
}

Result<std::shared_ptr<Recorder>> Recorder::InFile(const std::string& path, int64_t events) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed(path);
  return Map(fd, events, true);
}

void Recorder::Add(EventKind kind, std::string_view text, int64_t value) {
  const uint64_t number = header_->next.fetch_add(1, std::memory_order_relaxed);
  RecordedEvent& event = events_[number & mask_];
  event.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  constexpr size_t kRoom = sizeof(event.text);
  const bool sentence = kind >= EventKind::kFailed;
  if (text.size() > kRoom)
    text = sentence ? Shortened(text, kRoom) : text.substr(text.size() - kRoom);
  OfThread& mine = OfThisThread();
  mine.lasting = 0;
  event.time.store(Now(), std::memory_order_relaxed);
  event.what.store(static_cast<uint64_t>(kind) | static_cast<uint64_t>(text.size()) << 16 |
                       static_cast<uint64_t>(mine.id) << 32,
                   std::memory_order_relaxed);
  event.value.store(value, std::memory_order_relaxed);
  Store(text, event.text);
  event.number.store(number + 1, std::memory_order_release);
  Prefetch(events_[(number + kAhead) & mask_]);
}

void Recorder::AddOnce(EventKind kind, std::string_view text, uint64_t which) {
  if (OfThisThread().lasting == which) return;
  Add(kind, text);
  OfThisThread().lasting = which;
}

}  // namespace horon
