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

// How a rank's life ends: its last Post, over whichever transport, once there is a world.
struct Death {
  int posts;  // left
  std::atomic<World*> world{nullptr};
  std::shared_ptr<Losses> losses = std::make_shared<Losses>();  // for other nodes
};

class DyingTransport final : public test::WrappedTransport {
 public:
  DyingTransport(std::unique_ptr<Transport> inner, Death& death)
      : WrappedTransport(std::move(inner)), death_(&death) {}
  Status Post(Transfer& transfer) override {
    World* world = death_->world.load();
    if (world != nullptr && --death_->posts == 0) {
      death_->losses->Report(1, "rank 1 was killed by signal 9");
      world->MarkDead(1, "rank 1 was killed by signal 9");
    }
    return death_->posts <= 0 ? Status::Unavailable("this rank is dead")
                              : WrappedTransport::Post(transfer);
  }

 private:
  Death* death_;
};

struct Heard {
  std::atomic<int> errors{0}, marked{0}, unmarked{0};
};

// Two tensors, one in place and one not; rank 1 dies at that post. `local_size`: ranks of a node.
void LoseRank(int size, int local_size, const std::string& op, int posts, Heard& heard) {
  Death death{posts};
  WorldOptions options;
  options.local_size = local_size;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    if (rank != 1) return inner;
    return std::unique_ptr<Transport>(std::make_unique<DyingTransport>(std::move(inner), death));
  };
  if (local_size < size) options.losses = death.losses;
  World all(size, options);
  death.world = &all;
  const int nodes = (size + local_size - 1) / local_size;
  Verdicts verdicts;
  all.Run([&](Rank& me) {
    // Parallel, so that every way gives the mean, of nodes where these add.
    const auto mine = std::ldexp(1.0f, 2 * me.rank());
    const std::vector<float> before(100'000, mine);
    const float sum = (std::ldexp(1.0f, 2 * size) - 1) / 3;
    const bool adds = op.find("local=sum") != std::string::npos;
    const float want = sum / static_cast<float>(adds ? nodes : size);
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
          EXPECT(std::fabs(result[i] - want) < 1e-4f * want, "wrong, without an error");
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
  INFO(op << " of " << size << " ranks, " << local_size << " a node, at post " << posts);
  RequireNone(verdicts);
}

// At every fifth post of that many; `size` ranks, `local_size` a node.
void LoseRankAnywhere(int size, int local_size, const std::string& op, int posts, Heard& heard) {
  for (int at = size - 1; at <= posts; at += 5) LoseRank(size, local_size, op, at, heard);
}

TEST_CASE(
    "a rank lost at any message of adasum: the rest hear who, and which tensors it left half done",
    "[adasum]") {
  for (const char* op : {"adasum", "adasum:algo=halving,chunk=16384", "adasum:algo=doubling",
                         "adasum:algo=tree,chunk=16384", "adasum:algo=ring"}) {
    Heard heard;
    for (const int size : {2, 3, 4}) LoseRankAnywhere(size, size, op, 40, heard);
    INFO(op);
    CHECK(heard.errors >= 12);  // the others had died before or lived on
    CHECK(heard.marked > 0);
  }
}

TEST_CASE("the same over nodes: inside them, between them, and in what local_op adds", "[adasum]") {
  for (const char* op : {"adasum:chunk=16384", "adasum:algo=tree,chunk=16384",
                         "adasum:local=average,chunk=16384", "adasum:local=sum,chunk=16384"}) {
    Heard heard;
    for (const int size : {3, 4}) LoseRankAnywhere(size, 2, op, 60, heard);
    INFO(op);
    CHECK(heard.errors >= 12);
    CHECK(heard.marked > 0);
  }
}

}  // namespace
}  // namespace horon
