#include "runtime/transport/peer_memory.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/recycler.h"

namespace horon {
namespace {

constexpr size_t kMostPieces = 512;  // of one call; the kernel takes 1,024

}  // namespace

OfferedMemory::OfferedMemory(RankWords& words) : words_(words), number_(0) {
  // Without randomness nobody reads.
  if (getrandom(&number_, sizeof number_, 0) != sizeof number_) return;
  words.proof = number_;
  words.proof_at = reinterpret_cast<uint64_t>(&number_);
  words.process.store(getpid(), std::memory_order_release);
}

OfferedMemory::~OfferedMemory() { words_.process.store(0, std::memory_order_release); }

bool PeerMemory::readable() {
  if (state_ != State::kUnknown) return state_ == State::kReadable;
  process_ = words_->process.load(std::memory_order_acquire);
  if (process_ == 0) return false;  // not yet
  uint64_t found = 0;
  const iovec proof{reinterpret_cast<void*>(words_->proof_at), sizeof found};
  const iovec here{&found, sizeof found};
  const bool same = Copy({&proof, 1}, {&here, 1}) && found == words_->proof;
  state_ = same ? State::kReadable : State::kRefused;
  return same;
}

bool PeerMemory::Read(std::span<const Span> from, SpanCursor& from_at, std::span<const Span> to,
                      SpanCursor& to_at, int64_t bytes) {
  RecycledVector<iovec> theirs, mine;  // in pairs of one length
  ForNext(to, to_at, bytes, [&](std::byte* out, int64_t n) {
    ForNext(from, from_at, n, [&](std::byte* in, int64_t m) {
      theirs.push_back({in, static_cast<size_t>(m)});
      mine.push_back({out, static_cast<size_t>(m)});
      out += m;
      bytes -= m;
    });
  });
  for (size_t at = 0; at < mine.size(); at += kMostPieces) {
    const size_t count = std::min(kMostPieces, mine.size() - at);
    if (!Copy({&theirs[at], count}, {&mine[at], count})) return false;
  }
  return bytes == 0;
}

// In pairs of one length. Memory that is not there, or that the system does not hand out, is no
// reason to think so of the rest.
bool PeerMemory::Copy(std::span<const iovec> from, std::span<const iovec> to) {
  size_t bytes = 0;
  for (const iovec& piece : to) bytes += piece.iov_len;
  ssize_t n = 0;
  do {
    n = process_vm_readv(static_cast<pid_t>(process_), to.data(), to.size(), from.data(),
                         from.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EFAULT) state_ = State::kRefused;
  return n == static_cast<ssize_t>(bytes);
}

}  // namespace horon
