#include "runtime/transport/peer_memory.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace horon {
namespace {

constexpr size_t kMostPieces = 512;  // of one call; the kernel takes 1,024

std::vector<iovec> Iovecs(std::span<const Span> spans) {
  std::vector<iovec> out;
  for (const Span& span : spans) out.push_back({span.data, static_cast<size_t>(span.bytes)});
  return out;
}

// The next at most `bytes` bytes, in at most kMostPieces pieces.
std::vector<Span> Next(std::span<const Span> spans, SpanCursor at, int64_t bytes) {
  std::vector<Span> out;
  ForNext(spans, at, bytes, [&](std::byte* data, int64_t n) {
    if (out.size() < kMostPieces) out.push_back({data, n});
  });
  return out;
}

void Shorten(std::vector<Span>& spans, int64_t bytes) {
  size_t kept = 0;
  for (; bytes > 0; ++kept) {
    spans[kept].bytes = std::min(spans[kept].bytes, bytes);
    bytes -= spans[kept].bytes;
  }
  spans.resize(kept);
}

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
  const Span proof{reinterpret_cast<std::byte*>(words_->proof_at), sizeof found};
  const Span here{reinterpret_cast<std::byte*>(&found), sizeof found};
  const bool same = Copy({&proof, 1}, {&here, 1}) && found == words_->proof;
  state_ = same ? State::kReadable : State::kRefused;
  return same;
}

bool PeerMemory::Read(std::span<const Span> from, SpanCursor& from_at, std::span<const Span> to,
                      SpanCursor& to_at, int64_t bytes) {
  while (bytes > 0) {
    std::vector<Span> theirs = Next(from, from_at, bytes), mine = Next(to, to_at, bytes);
    const int64_t now = std::min(TotalBytes(theirs), TotalBytes(mine));
    Shorten(theirs, now);
    Shorten(mine, now);
    if (now == 0 || !Copy(theirs, mine)) return false;
    ForNext(from, from_at, now, [](std::byte*, int64_t) {});
    ForNext(to, to_at, now, [](std::byte*, int64_t) {});
    bytes -= now;
  }
  return true;
}

// Both are equally long. Memory that is not there, or that the system does not hand out, is no
// reason to think so of the rest.
bool PeerMemory::Copy(std::span<const Span> from, std::span<const Span> to) {
  const std::vector<iovec> remote = Iovecs(from), local = Iovecs(to);
  ssize_t n = 0;
  do {
    n = process_vm_readv(static_cast<pid_t>(process_), local.data(), local.size(), remote.data(),
                         remote.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EFAULT) state_ = State::kRefused;
  return n == TotalBytes(to);
}

}  // namespace horon
