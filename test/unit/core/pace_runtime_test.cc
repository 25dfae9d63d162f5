// A runtime leaves bytes that travel slowly to themselves.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "runtime/transport/spans.h"
#include "test/support/road.h"
#include "test/support/wrapped_transport.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// Large messages of a rank leave one after the other, at 1 Gbit/s.
class SlowLink final : public test::WrappedTransport {
 public:
  using Clock = std::chrono::steady_clock;

  using WrappedTransport::WrappedTransport;

  Status Post(Transfer& transfer) override {
    const int64_t bytes = TotalBytes(transfer.spans);
    if (transfer.direction != Transfer::Direction::kSend || bytes < kLarge)
      return WrappedTransport::Post(transfer);
    Take(transfer);
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / kRate);
    free_at_ = std::max(free_at_, Clock::now()) +
               std::chrono::duration_cast<Clock::duration>(takes);
    held_.push_back({&transfer, free_at_});
    sent->Add(bytes);
    return Status::Ok();
  }
  Result<bool> Progress() override {
    bool moved = false;
    while (!held_.empty() && held_.front().leaves <= Clock::now()) {
      Transfer& transfer = *held_.front().transfer;
      held_.erase(held_.begin());
      HORON_TRY(WrappedTransport::Post(transfer));
      moved = true;
    }
    HORON_ASSIGN(const bool more, WrappedTransport::Progress());
    if (!moved && !more && !held_.empty()) ++looks;
    return moved || more;
  }
  void Cancel(Transfer& transfer) override {
    const auto of = [&](const Held& held) { return held.transfer == &transfer; };
    if (std::erase_if(held_, of) == 0) return WrappedTransport::Cancel(transfer);
    Withdraw(transfer);
  }

  Counter* sent = nullptr;  // of the runtime, as MPI counts what it is given
  std::atomic<int> looks = 0;  // in vain, while something travels

 private:
  static constexpr int64_t kLarge = 64 << 10;
  static constexpr double kRate = 125e6;
  struct Held {
    Transfer* transfer;
    Clock::time_point leaves;
  };

  Clock::time_point free_at_;
  std::vector<Held> held_;
};

// A large sum between two hosts: how often rank 0 looks in vain, for each ms of it.
double LooksPerMs() {
  WorldOptions apart;
  apart.local_size = 1;
  std::vector<SlowLink*> links;
  apart.wrap = [&](int, std::unique_ptr<Transport> inner) {
    auto link = std::make_unique<SlowLink>(std::move(inner));
    links.push_back(link.get());
    return link;
  };
  Verdicts verdicts;
  World world(2, apart);
  double looks = 0;
  world.Run([&](Rank& me) {
    SlowLink& link = *links[static_cast<size_t>(2 * me.rank() + 1)];
    link.sent = &me.runtime().counters()["mpi.bytes"];
    std::vector<float> values(4 << 20, 1);
    EXPECT(me.Reduce("x", "sum", values).ok(), "failed");
    const int before = link.looks;
    const auto begun = SlowLink::Clock::now();
    EXPECT(me.Reduce("x", "sum", values).ok(), "failed");
    const std::chrono::duration<double, std::milli> took = SlowLink::Clock::now() - begun;
    EXPECT(values.front() == 4 && values.back() == 4, "wrong sum");
    if (me.rank() == 0) looks = (link.looks - before) / took.count();
  });
  RequireNone(verdicts);
  return looks;
}

TEST_CASE("while much travels slowly, naps are as long as a part of it takes") {
  // Naps of 1 ms, and a few looks where slices begin and end: about 2. Without naps 40 and more.
  CHECK(LooksPerMs() < 15);
}

}  // namespace
}  // namespace horon
