// The messages of two ranks of a node. First the ring (runtime/transport/ring.h): packets of a head
// and what it announces, written whole or not at all, one behind the other in a ring that is hardly
// longer than one of them. Then a message that is read where it lies (shm_peer.cc): its sender may
// take it back, and write to its memory, while the reader reads; the reader finds that from a count
// of what was taken back. Checked: everything arrives as it was written, what is read of memory
// that was taken back is never used, and nobody waits for ever.
#include "model.h"

namespace {

constexpr unsigned kCapacity = 4, kPackets = 5;
constexpr unsigned kCells[kPackets] = {2, 0, 3, 1, 2};  // of each packet behind its head

enum class Mistake {
  kNone,
  kRelaxedHead,
  kRelaxedTail,
  kRoomForMore,
  kSaidInParts,
  kFreedBeforeRead,
  kNoFenceSender,
  kNoFenceReader,
  kCountedLate,
  kNotLookedAgain
};

template <Mistake kMistake>
struct Ring : rl::test_suite<Ring<kMistake>, 2> {
  rl::atomic<unsigned> head, tail;
  rl::var<int> cells[kCapacity];

  void before() { head($) = tail($) = 0; }
  void thread(unsigned index) { index == 0 ? Writer() : Reader(); }

  static int Value(unsigned packet, unsigned cell) {
    return static_cast<int>(10 * packet + cell + 1);
  }

  void Writer() {
    unsigned written = 0;
    const auto publish = [&] {
      head($).store(written, kMistake == Mistake::kRelaxedHead ? rl::mo_relaxed : rl::mo_release);
    };
    const auto room = [&] {
      const unsigned more = kMistake == Mistake::kRoomForMore ? 1 : 0;
      return kCapacity + more - (written - tail($).load(rl::mo_acquire));
    };
    for (unsigned p = 0; p < kPackets; ++p) {
      while (room() < 1 + kCells[p]) rl::yield(1, $);
      cells[written++ % kCapacity]($) = static_cast<int>(kCells[p]);
      if (kMistake == Mistake::kSaidInParts) publish();
      for (unsigned c = 0; c < kCells[p]; ++c) cells[written++ % kCapacity]($) = Value(p, c);
      publish();
    }
  }

  void Reader() {
    unsigned read = 0;
    const auto give = [&](unsigned to) {
      tail($).store(to, kMistake == Mistake::kRelaxedTail ? rl::mo_relaxed : rl::mo_release);
    };
    for (unsigned p = 0; p < kPackets; ++p) {
      unsigned available = 0;
      while ((available = head($).load(rl::mo_acquire) - read) < 1) rl::yield(1, $);
      const auto count = static_cast<unsigned>(static_cast<int>(cells[read++ % kCapacity]($)));
      RL_ASSERT(count == kCells[p] && available >= 1 + count);
      if (kMistake == Mistake::kFreedBeforeRead) give(read + count);
      for (unsigned c = 0; c < count; ++c) RL_ASSERT(cells[read++ % kCapacity]($) == Value(p, c));
      give(read);
    }
  }
};

// Two messages from the same memory: the first one may be taken back, the second one is not. What
// the ring orders, it orders here: `shown` and `taken` stand for packets.
template <Mistake kMistake>
struct Shown : rl::test_suite<Shown<kMistake>, 2> {
  static constexpr unsigned kPieces = 2, kMessages = 2;
  rl::atomic<unsigned> memory[kPieces];  // a system call reads it, whatever its owner does
  rl::atomic<unsigned> revoked;
  rl::atomic<unsigned> shown, count;  // messages that were shown; `revoked` by then
  rl::atomic<unsigned> answered;      // messages that the reader has read, or given up

  void before() {
    for (auto& piece : memory) piece($) = 0;
    revoked($) = shown($) = count($) = answered($) = 0;
  }
  void thread(unsigned index) { index == 0 ? Sender() : Reader(); }

  static unsigned Value(unsigned message, unsigned piece) { return 10 * message + piece; }

  void Fill(unsigned message) {
    for (unsigned i = 0; i < kPieces; ++i)
      memory[i]($).store(Value(message, i), rl::mo_relaxed);
  }

  void Sender() {
    for (unsigned message = 1; message <= kMessages; ++message) {
      Fill(message);
      count($).store(revoked($).load(rl::mo_relaxed), rl::mo_relaxed);
      shown($).store(message, rl::mo_release);
      if (message == 1 && rl::rand(4) != 0) {
        if (kMistake != Mistake::kCountedLate) Revoke();
        Fill(7);  // it is the user's again
        if (kMistake == Mistake::kCountedLate) Revoke();
      }
      while (answered($).load(rl::mo_acquire) < message) rl::yield(1, $);
    }
  }

  void Revoke() {
    revoked($).fetch_add(1, rl::mo_relaxed);
    if (kMistake != Mistake::kNoFenceSender) rl::atomic_thread_fence(rl::mo_seq_cst, $);
  }

  void Reader() {
    for (unsigned message = 1; message <= kMessages; ++message) {
      while (shown($).load(rl::mo_acquire) < message) rl::yield(1, $);
      const unsigned by_then = count($).load(rl::mo_relaxed);
      const auto intact = [&] { return revoked($).load(rl::mo_relaxed) == by_then; };
      unsigned came[kPieces] = {}, read = 0;
      while (read < kPieces && intact()) {
        came[read] = memory[read]($).load(rl::mo_relaxed);
        if (kMistake != Mistake::kNoFenceReader) rl::atomic_thread_fence(rl::mo_acquire, $);
        if (kMistake != Mistake::kNotLookedAgain && !intact()) break;
        ++read;
      }
      RL_ASSERT(read == kPieces || message == 1);  // it was taken back
      for (unsigned i = 0; i < kPieces && read == kPieces; ++i)
        RL_ASSERT(came[i] == Value(message, i));
      answered($).store(message, rl::mo_release);
    }
  }
};

template <template <Mistake> typename Model, Mistake kMistake>
bool Right(const char* what) {
  return model::Check<Model<kMistake>>(what, kMistake == Mistake::kNone, 200000);
}

}  // namespace

int main() {
  bool right = Right<Ring, Mistake::kNone>("a ring");
  right = Right<Shown, Mistake::kNone>("a message that is read where it lies") && right;
  // Each of these is needed:
  right = Right<Ring, Mistake::kRelaxedHead>("head without release") && right;
  right = Right<Ring, Mistake::kRelaxedTail>("tail without release") && right;
  right = Right<Ring, Mistake::kRoomForMore>("more is written than there is room for") && right;
  right = Right<Ring, Mistake::kSaidInParts>("a packet is published in parts") && right;
  right = Right<Ring, Mistake::kFreedBeforeRead>("a packet is freed before it is read") && right;
  right = Right<Shown, Mistake::kNoFenceSender>("a sender without its fence") && right;
  right = Right<Shown, Mistake::kNoFenceReader>("a reader without its fence") && right;
  right = Right<Shown, Mistake::kCountedLate>("taken back after it was written to") && right;
  right = Right<Shown, Mistake::kNotLookedAgain>("the count is not looked at again") && right;
  return right ? 0 : 1;
}
