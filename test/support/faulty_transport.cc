#include "test/support/faulty_transport.h"

#include <algorithm>

namespace horon::test {

Status FaultyTransport::Post(Transfer& transfer) {
  if (fault_.armed != nullptr && !*fault_.armed) return WrappedTransport::Post(transfer);
  ++posts_;
  const bool hit = fault_.kind == Fault::Kind::kDropAll || fault_.kind == Fault::Kind::kDelay
                       ? posts_ >= fault_.at
                       : posts_ == fault_.at;
  if (!hit || fault_.kind == Fault::Kind::kNone ||
      (fault_.kind == Fault::Kind::kDelay && looks_ >= fault_.delay_looks))
    return WrappedTransport::Post(transfer);
  if (fault_.struck != nullptr) ++*fault_.struck;
  if (fault_.kind == Fault::Kind::kFail)
    return Status::Unavailable("injected: rank " + std::to_string(transfer.peer) +
                               " cannot be reached");
  if (fault_.kind == Fault::Kind::kFailProgress) {
    broken_ = true;
    return WrappedTransport::Post(transfer);
  }
  Take(transfer);
  if (fault_.kind == Fault::Kind::kDelay) {
    held_.push_back(&transfer);
  } else if (transfer.direction == Transfer::Direction::kSend) {
    transfer.done = true;
    transfer.transport = nullptr;
  } else {
    dropped_.push_back(&transfer);
  }
  return Status::Ok();
}

Result<bool> FaultyTransport::Progress() {
  if (broken_) return Status::Unavailable("injected: a rank is lost");
  if (!held_.empty() && ++looks_ >= fault_.delay_looks) {
    for (Transfer* transfer : std::exchange(held_, {})) HORON_TRY(WrappedTransport::Post(*transfer));
  }
  return WrappedTransport::Progress();
}

void FaultyTransport::Cancel(Transfer& transfer) {
  if (std::erase(held_, &transfer) + std::erase(dropped_, &transfer) == 0) {
    WrappedTransport::Cancel(transfer);
    return;
  }
  Withdraw(transfer);
}

}  // namespace horon::test
