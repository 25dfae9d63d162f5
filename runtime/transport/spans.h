// Copying between one run of bytes and a list of spans, from a given place on. For transports.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/base/tensor.h"

namespace horon {

inline int64_t TotalBytes(std::span<const Span> spans) {
  int64_t total = 0;
  for (const Span& span : spans) total += span.bytes;
  return total;
}

// A place in a list of spans that moves forward.
struct SpanCursor {
  size_t span = 0;
  int64_t offset = 0;
};

// Calls f(data, bytes) for the next `bytes` bytes, piece by piece, and moves the cursor.
template <typename F>
void ForNext(std::span<const Span> spans, SpanCursor& at, int64_t bytes, F&& f) {
  while (bytes > 0 && at.span < spans.size()) {
    const Span& span = spans[at.span];
    const int64_t n = std::min(bytes, span.bytes - at.offset);
    if (n > 0) f(span.data + at.offset, n);
    at.offset += n;
    bytes -= n;
    if (at.offset == span.bytes) {
      ++at.span;
      at.offset = 0;
    }
  }
}

}  // namespace horon
