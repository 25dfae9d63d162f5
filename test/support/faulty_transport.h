// FaultyTransport: another transport that goes wrong at its k-th Post: it fails, or its next
// Progress does; it drops that transfer (a send seems to succeed, a receive never ends), or holds
// it and all later ones back for a while.
#pragma once

#include <atomic>
#include <deque>
#include <memory>

#include "test/support/wrapped_transport.h"

namespace horon::test {

struct Fault {
  enum class Kind { kNone, kFail, kFailProgress, kDrop, kDropAll, kDelay } kind = Kind::kNone;
  int at = 1;                          // the k-th Post, from 1
  int delay_looks = 200;               // kDelay: calls of Progress that the transfers are held back
  std::atomic<int>* struck = nullptr;  // counts the transfers that it struck
  const std::atomic<bool>* armed = nullptr;  // Posts count from when this is true
};

class FaultyTransport final : public WrappedTransport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, Fault fault)
      : WrappedTransport(std::move(inner)), fault_(fault) {}
  Status Post(Transfer& transfer) override;
  Result<bool> Progress() override;
  void Cancel(Transfer& transfer) override;
  std::chrono::microseconds poll_interval() const override {
    // Held transfers go on without anybody ringing.
    return held_.empty() ? WrappedTransport::poll_interval() : std::chrono::microseconds{50};
  }

 private:
  Fault fault_;
  int posts_ = 0, looks_ = 0;
  bool broken_ = false;
  std::deque<Transfer*> held_, dropped_;
};

}  // namespace horon::test
