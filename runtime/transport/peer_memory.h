// PeerMemory: reading the memory of another process of the node directly (process_vm_readv, "cross
// memory attach"), where the system lets us: one copy in place of one into shared memory and one
// out of it. Thread ranks read their own process's memory in the same way.
//
// Each rank says in its words which process it is, and where a random number lies in its memory.
// Whoever finds that number there may read. The system refuses when the processes belong to
// different users, where Yama lets only parents trace (ptrace_scope 1), or in a container whose
// seccomp profile forbids it. Holder of the baton only.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "runtime/transport/segment.h"
#include "runtime/transport/spans.h"

namespace horon {

// What a rank offers to the others: alive as long as the words say so.
class OfferedMemory {
 public:
  explicit OfferedMemory(RankWords& words);
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

 private:
  RankWords& words_;
  uint64_t number_;
};

class PeerMemory {
 public:
  explicit PeerMemory(RankWords& words) : words_(&words) {}
  // Whether the peer's memory can be read. Once refused, it stays so.
  bool readable();
  // The next `bytes` bytes of `from`, addresses of the peer, into the next of `to`. False: refused,
  // or `from` is not all there; what was copied is undefined then, and the cursors too.
  bool Read(std::span<const Span> from, SpanCursor& from_at, std::span<const Span> to,
            SpanCursor& to_at, int64_t bytes);

 private:
  enum class State : uint8_t { kUnknown, kReadable, kRefused };
  bool Copy(std::span<const iovec> from, std::span<const iovec> to);

  RankWords* words_;
  State state_ = State::kUnknown;
  int64_t process_ = 0;
};

}  // namespace horon
