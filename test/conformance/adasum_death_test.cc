// A rank is lost in the middle of Adasum: what the others hear, and what of their tensors is left.
#include <atomic>
#include <cmath>

#include "test/support/road.h"
#include "test/support/wrapped_transport.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// A transport whose k-th Post, once there is a world, is the last thing its rank does.
class DyingTransport final : public test::WrappedTransport {
 public:
  DyingTransport(std::unique_ptr<Transport> inner, int posts, const std::atomic<World*>& world)
      : WrappedTransport(std::move(inner)), left_(posts), world_(&world) {}
  Status Post(Transfer& transfer) override {
    World* world = world_->load();
    if (world != nullptr && --left_ == 0) world->MarkDead(1, "rank 1 was killed by signal 9");
    return left_ <= 0 ? Status::Unavailable("this rank is dead") : WrappedTransport::Post(transfer);
  }

 private:
  int left_;
  const std::atomic<World*>* world_;
};

struct Heard {
  std::atomic<int> errors{0}, marked{0}, unmarked{0};
};

// Two tensors, one in place and one not; rank 1 dies at that post.
void LoseRank(int size, const std::string& op, int posts, Heard& heard) {
  std::atomic<World*> world{nullptr};
  WorldOptions options;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    if (rank != 1) return inner;
    return std::unique_ptr<Transport>(
        std::make_unique<DyingTransport>(std::move(inner), posts, world));
  };
  World all(size, options);
  world = &all;
  Verdicts verdicts;
  all.Run([&](Rank& me) {
    // Parallel, so that every way gives the mean.
    const auto mine = std::ldexp(1.0f, 2 * me.rank());
    const std::vector<float> before(100'000, mine);
    const std::vector<float> mean(before.size(),
                                  (std::ldexp(1.0f, 2 * size) - 1) / 3 / static_cast<float>(size));
    std::vector<float> in_place = before, input = before, output(before.size());
    const Request here = Tensor("here", op, {100'000}), there = Tensor("there", op, {100'000});
    const auto first = me.Submit(here, in_place.data(), in_place.data());
    const auto second = me.Submit(there, input.data(), output.data());
    for (const auto* work : {&first, &second}) {
      const bool is_here = work == &first;
      const Status status = work->ok() ? me.Wait(*work->value()) : work->status();
      if (status.ok()) {
        const std::vector<float>& result = is_here ? in_place : output;
        for (size_t i : {size_t{0}, size_t{50'000}, result.size() - 1})
          EXPECT(std::fabs(result[i] - mean[i]) < 1e-4f * mean[i], "wrong, without an error");
        continue;
      }
      ++heard.errors;
      EXPECT(status.code() == Code::kUnavailable, status.message());
      if (me.rank() != 1)
        EXPECT(status.message().find("rank 1 was killed") != std::string::npos, status.message());
      const bool marked = status.message().find("partly written") != std::string::npos;
      if (is_here) ++(marked ? heard.marked : heard.unmarked);
      EXPECT(!marked || is_here, "not in place: " + status.message());
      EXPECT(!marked || status.message().find("'here'") != std::string::npos, status.message());
      EXPECT(!is_here || marked || in_place == before, "changed, and nothing says so");
    }
    EXPECT(input == before, "an input was changed");
  });
  INFO(op << " of " << size << " at post " << posts);
  RequireNone(verdicts);
}

TEST_CASE(
    "a rank lost at any message of adasum: the rest hear who, and which tensors it left half done",
    "[adasum]") {
  for (const char* op : {"adasum", "adasum:algo=halving,chunk=16384", "adasum:algo=doubling",
                         "adasum:algo=tree,chunk=16384", "adasum:algo=ring"}) {
    Heard heard;
    for (const int size : {2, 3, 4}) {
      for (int posts = size - 1; posts <= 40; posts += 5) LoseRank(size, op, posts, heard);
    }
    INFO(op);
    CHECK(heard.errors >= 12);  // the others had died before or lived on
    CHECK(heard.marked > 0);
  }
}

}  // namespace
}  // namespace horon
