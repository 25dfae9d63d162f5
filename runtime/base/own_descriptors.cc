#include "runtime/base/own_descriptors.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace horon {
namespace {

// A bit for each number that a descriptor may have; those above are not closed in children.
constexpr int kMost = 1 << 16, kBits = 64;
std::array<std::atomic<uint64_t>, kMost / kBits> own;

std::atomic<uint64_t>& WordOf(int fd) { return own[static_cast<size_t>(fd / kBits)]; }
uint64_t BitOf(int fd) { return uint64_t{1} << (fd % kBits); }

}  // namespace

int Own(int fd) {
  if (fd >= 0 && fd < kMost) WordOf(fd).fetch_or(BitOf(fd), std::memory_order_relaxed);
  return fd;
}

void CloseOwn(int fd) {
  if (fd < 0) return;
  const bool here =
      fd >= kMost || (WordOf(fd).fetch_and(~BitOf(fd), std::memory_order_relaxed) & BitOf(fd)) != 0;
  if (here) close(fd);
}

void CloseInChild() {
  for (size_t i = 0; i < own.size(); ++i) {
    uint64_t left = own[i].exchange(0, std::memory_order_relaxed);
    for (; left != 0; left &= left - 1) close(static_cast<int>(i) * kBits + std::countr_zero(left));
  }
}

}  // namespace horon
