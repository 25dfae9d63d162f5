// Transports that treat the messages of windows badly, and let all else pass: Unreliable by the
// dice, Muted while a test says so.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "runtime/peer/link.h"
#include "test/support/world.h"
#include "test/support/wrapped_transport.h"

namespace horon::test {

// Every message of windows is lost, sent twice, or sent late, by the dice; all else passes.
class Unreliable final : public WrappedTransport {
 public:
  Unreliable(std::unique_ptr<Transport> inner, unsigned seed, int lose, int twice, int late)
      : WrappedTransport(std::move(inner)),
        random_(seed),
        lose_(lose),
        twice_(twice),
        late_(late) {}
  std::chrono::microseconds poll_interval() const override { return std::chrono::microseconds{50}; }

  Status Post(Transfer& transfer) override {
    if (transfer.tag != kPeerTag || transfer.direction == Transfer::Direction::kReceive)
      return WrappedTransport::Post(transfer);
    const int dice = static_cast<int>(random_() % 100);
    if (dice >= lose_ + twice_ + late_) return WrappedTransport::Post(transfer);
    if (dice >= lose_) Keep(transfer, dice < lose_ + twice_ ? 2 : 1);
    transfer.status = Status::Ok();
    transfer.done = true;
    return Status::Ok();
  }
  Result<bool> Progress() override {
    std::erase_if(copies_, [](const auto& copy) { return copy->posted && copy->transfer.done; });
    for (const auto& copy : copies_) {
      if (copy->posted || random_() % 8 != 0) continue;
      copy->posted = true;
      HORON_TRY(WrappedTransport::Post(copy->transfer));
    }
    return WrappedTransport::Progress();
  }

 private:
  struct Copy {
    std::vector<std::byte> bytes;
    bool posted = false;
    Transfer transfer;
  };
  // Sent later, after or between others, as often as said.
  void Keep(const Transfer& transfer, int times) {
    for (; times > 0; --times) {
      auto copy = std::make_unique<Copy>();
      for (const Span& span : transfer.spans)
        copy->bytes.insert(copy->bytes.end(), span.data, span.data + span.bytes);
      copy->transfer.peer = transfer.peer;
      copy->transfer.tag = transfer.tag;
      copy->transfer.spans = {Span{copy->bytes.data(), static_cast<int64_t>(copy->bytes.size())}};
      copies_.push_back(std::move(copy));
    }
  }
  std::mt19937 random_;
  int lose_, twice_, late_;
  std::vector<std::unique_ptr<Copy>> copies_;
};

// One rank a node, and such a transport between them.
inline WorldOptions Between(std::chrono::milliseconds patience, int lose, int twice, int late) {
  WorldOptions options;
  options.local_size = 1;
  options.configure = [=](Config& config) { config.gossip_time = patience; };
  options.wrap = [=](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Unreliable>(std::move(inner), static_cast<unsigned>(rank), lose, twice,
                                        late);
  };
  return options;
}

enum class Way { kOpen, kMute, kBroken };

// No message of windows leaves this rank for as long as its way is mute; broken, nothing goes.
class Muted final : public WrappedTransport {
 public:
  Muted(std::unique_ptr<Transport> inner, std::atomic<Way>& way)
      : WrappedTransport(std::move(inner)), way_(way) {}
  std::chrono::microseconds poll_interval() const override { return std::chrono::microseconds{50}; }
  Result<bool> Progress() override {
    if (way_.load() == Way::kBroken) return Status::Unavailable("the way is broken");
    return WrappedTransport::Progress();
  }
  Status Post(Transfer& transfer) override {
    const bool sends = transfer.direction == Transfer::Direction::kSend;
    if (transfer.tag != kPeerTag || !sends || way_.load() != Way::kMute)
      return WrappedTransport::Post(transfer);
    transfer.status = Status::Ok();
    transfer.done = true;
    return Status::Ok();
  }

 private:
  std::atomic<Way>& way_;
};

}  // namespace horon::test
