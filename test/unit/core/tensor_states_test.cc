#include "runtime/core/tensor_states.h"

#include "test/support/catch.h"

namespace horon {
namespace {

struct Counted final : TensorState {
  explicit Counted(int* count) : alive(count) { ++*alive; }
  ~Counted() override { --*alive; }
  int* alive;
};

TEST_CASE("a tensor's state is found again, by op and by name") {
  TensorStates states;
  int alive = 0;
  states.Of("topk", "0/a") = std::make_unique<Counted>(&alive);
  CHECK(states.Of("topk", "0/a") != nullptr);
  CHECK(states.Of("topk", "0/b") == nullptr);
  CHECK(states.Of("other", "0/a") == nullptr);
  CHECK(states.size() == 3);
}

TEST_CASE("names that never come again are forgotten, one that is in use is not") {
  TensorStates states;
  int alive = 0;
  states.Of("topk", "0/used") = std::make_unique<Counted>(&alive);
  const auto calls = static_cast<int>(3 * TensorStates::kMost);
  for (int i = 0; i < calls; ++i) {
    states.Of("topk", "0/fresh." + std::to_string(i)) = std::make_unique<Counted>(&alive);
    if (i % 1000 == 0) REQUIRE(states.Of("topk", "0/used") != nullptr);
  }
  CHECK(alive == static_cast<int>(states.size()));
  CHECK(states.size() == TensorStates::kMost);
  CHECK(states.Of("topk", "0/fresh.0") == nullptr);
  CHECK(states.Of("topk", "0/fresh." + std::to_string(calls - 1)) != nullptr);
}

TEST_CASE("a tensor that comes seldom is not forgotten over many calls of few others") {
  TensorStates states;
  int alive = 0;
  states.Of("gossip", "0/seldom") = std::make_unique<Counted>(&alive);
  for (size_t i = 0; i < 3 * TensorStates::kMost; ++i)
    states.Of("gossip", "0/often." + std::to_string(i % 100));
  CHECK(states.Of("gossip", "0/seldom") != nullptr);
}

}  // namespace
}  // namespace horon
