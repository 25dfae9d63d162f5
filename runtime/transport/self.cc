#include <algorithm>

#include "runtime/transport/shm.h"

namespace horon {
namespace {

void Copy(Transfer& send, Transfer& receive) {
  SpanCursor at;
  const int64_t bytes = TotalBytes(send.spans);
  Status status;
  if (bytes > TotalBytes(receive.spans)) {
    status = Status::Internal("this rank sent itself more bytes than it expects");
  } else {
    for (const Span& span : send.spans) {
      const std::byte* from = span.data;
      ForNext(receive.spans, at, span.bytes, [&](std::byte* to, int64_t n) {
        std::memmove(to, from, static_cast<size_t>(n));
        from += n;
      });
    }
  }
  for (Transfer* t : {&send, &receive}) {
    t->status = status;
    t->bytes = bytes;
    t->done = true;
    t->transport = nullptr;
  }
}

}  // namespace

Status SelfTransport::Post(Transfer& transfer) {
  const bool send = transfer.direction == Transfer::Direction::kSend;
  auto& others = send ? receives_ : sends_;
  transfer.done = false;
  transfer.status = Status::Ok();
  transfer.transport = this;
  const auto it = std::find_if(others.begin(), others.end(),
                               [&](Transfer* t) { return t->tag == transfer.tag; });
  if (it == others.end()) {
    (send ? sends_ : receives_).push_back(&transfer);
    return Status::Ok();
  }
  Transfer* other = *it;
  others.erase(it);
  Copy(send ? transfer : *other, send ? *other : transfer);
  return Status::Ok();
}

void SelfTransport::Cancel(Transfer& transfer) {
  std::erase(sends_, &transfer);
  std::erase(receives_, &transfer);
  transfer.done = true;
  transfer.status = Status::Aborted("cancelled");
  transfer.transport = nullptr;
}

}  // namespace horon
