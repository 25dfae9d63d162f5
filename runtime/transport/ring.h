// Ring: one direction of one pair of ranks, a lock-free byte stream with one writer and one reader.
//
// head and tail count bytes since the start and only grow; the byte at position p lies at p modulo
// the ring's size. The writer publishes with a release of head, the reader frees with a release of
// tail, each reads the other's word with acquire. A packet is written whole or not at all.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/transport/segment.h"

namespace horon {

class RingWriter {
 public:
  RingWriter(RingWords& words, std::byte* bytes, int64_t capacity)
      : words_(&words),
        bytes_(bytes),
        capacity_(static_cast<uint64_t>(capacity)),
        head_(words.head.load(std::memory_order_relaxed)) {}

  int64_t room_now() {
    tail_ = words_->tail.load(std::memory_order_acquire);
    return static_cast<int64_t>(capacity_ - (head_ - tail_));
  }
  // The caller has seen enough room.
  void Write(const void* data, int64_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    auto left = static_cast<uint64_t>(size);
    while (left > 0) {
      const uint64_t at = head_ & (capacity_ - 1);
      const uint64_t n = std::min(left, capacity_ - at);
      std::memcpy(bytes_ + at, from, n);
      from += n;
      head_ += n;
      left -= n;
    }
  }
  void Publish() { words_->head.store(head_, std::memory_order_release); }

 private:
  RingWords* words_;
  std::byte* bytes_;
  uint64_t capacity_;
  uint64_t head_;
  uint64_t tail_ = 0;  // the reader's, as last seen
};

class RingReader {
 public:
  RingReader(RingWords& words, const std::byte* bytes, int64_t capacity)
      : words_(&words),
        bytes_(bytes),
        capacity_(static_cast<uint64_t>(capacity)),
        tail_(words.tail.load(std::memory_order_relaxed)) {}

  int64_t available() {
    return static_cast<int64_t>(words_->head.load(std::memory_order_acquire) - tail_);
  }
  void Read(void* out, int64_t size) {
    auto* to = static_cast<std::byte*>(out);
    auto left = static_cast<uint64_t>(size);
    while (left > 0) {
      const uint64_t at = tail_ & (capacity_ - 1);
      const uint64_t n = std::min(left, capacity_ - at);
      if (to != nullptr) {
        std::memcpy(to, bytes_ + at, n);
        to += n;
      }
      tail_ += n;
      left -= n;
    }
  }
  void Skip(int64_t size) { Read(nullptr, size); }
  void Free() { words_->tail.store(tail_, std::memory_order_release); }

 private:
  RingWords* words_;
  const std::byte* bytes_;
  uint64_t capacity_;
  uint64_t tail_;
};

}  // namespace horon
