// WrappedTransport: another transport, unchanged. Tests that change something of it derive from this.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/transport/transport.h"

namespace horon::test {

class WrappedTransport : public Transport {
 public:
  explicit WrappedTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  bool Reaches(int peer) const override { return inner_->Reaches(peer); }
  Status Post(Transfer& transfer) override { return inner_->Post(transfer); }
  Result<bool> Progress() override { return inner_->Progress(); }
  int Sender(Tag tag) override { return inner_->Sender(tag); }
  void Cancel(Transfer& transfer) override { inner_->Cancel(transfer); }
  void Flush() override { inner_->Flush(); }
  void Abandon() override { inner_->Abandon(); }
  bool OutlivesRanks() const override { return inner_->OutlivesRanks(); }
  void Leave() override { inner_->Leave(); }
  std::chrono::microseconds poll_interval() const override { return inner_->poll_interval(); }
  Status Prepare(const std::vector<int>& ranks) override { return inner_->Prepare(ranks); }
  bool ReducesBlocks(const BlockReduction& reduction) const override {
    return inner_->ReducesBlocks(reduction);
  }
  Task ReduceBlock(BlockReduction reduction) override {
    return inner_->ReduceBlock(std::move(reduction));
  }

 protected:
  // Posted here, and not to the inner transport: until that gets it, or Withdraw.
  void Take(Transfer& transfer) {
    transfer.status = Status::Ok();
    transfer.bytes = 0;
    transfer.transport = this;
    transfer.done = false;
  }
  static void Withdraw(Transfer& transfer) {
    transfer.status = Status::Aborted("cancelled");
    transfer.done = true;
    transfer.transport = nullptr;
  }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace horon::test
