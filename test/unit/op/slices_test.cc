// What of a bucket is packed before its slices travel, and what is not.
#include "runtime/op/slices.h"

#include "test/support/catch.h"
#include "test/support/loop_transport.h"

namespace horon {
namespace {

constexpr int64_t kCount = 1000;

// Tensors of this rank, each with an output of its own, and scratch that is counted.
class CountedStage final : public Stage {
 public:
  CountedStage(Communicator& comm, int tensors)
      : comm_(&comm),
        inputs_(static_cast<size_t>(tensors), std::vector<float>(kCount, 1.0F)),
        outputs_(inputs_.size(), std::vector<float>(kCount)) {
    for (size_t t = 0; t < inputs_.size(); ++t) {
      segments_.push_back({t, &request_, &agreed_, reinterpret_cast<std::byte*>(inputs_[t].data()),
                           reinterpret_cast<std::byte*>(outputs_[t].data()), kCount});
    }
  }

  Communicator& comm() override { return *comm_; }
  std::span<Segment> segments() override { return segments_; }
  DataType dtype() const override { return DataType::kFloat32; }
  double prescale() const override { return 1; }
  double postscale() const override { return 1; }
  int set_size() const override { return comm_->size(); }
  Result<Buffer> Scratch(int64_t bytes) override {
    scratch += bytes;
    return comm_->pool().Take(bytes);
  }
  Status AllocateOutput(size_t, Shape) override { return Status::Internal("all are there"); }
  void SetReceivedSplits(size_t, std::vector<int64_t>) override {}
  std::unique_ptr<TensorState>& State(size_t) override { return state_; }

  const std::vector<float>& output(size_t t) const { return outputs_[t]; }
  int64_t scratch = 0;  // bytes asked for

 private:
  Communicator* comm_;
  Request request_;
  Agreement agreed_;
  std::vector<std::vector<float>> inputs_, outputs_;
  std::vector<Segment> segments_;
  std::unique_ptr<TensorState> state_;
};

struct Doubled {
  int64_t scratch = 0;
  std::vector<std::pair<const std::byte*, std::byte*>> given;  // what the step was given, by slice
  bool right = true;
};

Task WaitFor(Slices& slices) {
  co_await Until(slices);
  while (!slices.done()) co_await Until(slices);
  co_return slices.status();
}

Task Double(const std::byte* input, std::byte* output, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    reinterpret_cast<float*>(output)[i] = 2 * reinterpret_cast<const float*>(input)[i];
  co_return Status::Ok();
}

// A step that doubles, over so many tensors in slices of `bytes`.
Doubled RunDoubling(int tensors, int64_t bytes, double prescale) {
  Doubled done;
  std::unique_ptr<CountedStage> stage;
  std::unique_ptr<Slices> slices;
  const auto statuses = test::RunRanks(Topology::OneNode(1), 1, [&](Communicator& comm) {
    stage = std::make_unique<CountedStage>(comm, tensors);
    std::vector<size_t> all;
    for (size_t t = 0; t < static_cast<size_t>(tensors); ++t) all.push_back(t);
    slices = std::make_unique<Slices>(
        *stage, all, Slices::Plan{bytes, prescale},
        [&](Communicator&, const std::byte* input, std::byte* output, int64_t count) {
          done.given.emplace_back(input, output);
          return Double(input, output, count);
        });
    return WaitFor(*slices);
  });
  REQUIRE(statuses[0].ok());
  const auto wanted = static_cast<float>(2 * prescale);
  for (size_t t = 0; t < static_cast<size_t>(tensors); ++t) {
    for (const float value : stage->output(t)) done.right = done.right && value == wanted;
  }
  done.scratch = stage->scratch;
  return done;
}

TEST_CASE("a tensor alone is worked on where it lies, in one slice or several", "[ops]") {
  const Doubled whole = RunDoubling(1, kCount * 4, 1);
  CHECK((whole.right && whole.scratch == 0 && whole.given.size() == 1));
  CHECK(whole.given[0].first != whole.given[0].second);
  const Doubled parts = RunDoubling(1, 1024, 1);
  CHECK((parts.right && parts.scratch == 0 && parts.given.size() == 4));
}

TEST_CASE("several tensors, or one that is scaled before, are packed", "[ops]") {
  const Doubled several = RunDoubling(3, 3 * kCount * 4, 1);
  CHECK((several.right && several.scratch == 3 * kCount * 4 && several.given.size() == 1));
  CHECK(several.given[0].first == several.given[0].second);
  const Doubled scaled = RunDoubling(1, kCount * 4, 0.5);
  CHECK((scaled.right && scaled.scratch == kCount * 4));
}

TEST_CASE("slices of one of several tensors are not packed", "[ops]") {
  const Doubled fitting = RunDoubling(2, kCount * 4, 1);
  CHECK((fitting.right && fitting.scratch == 0 && fitting.given.size() == 2));
}

}  // namespace
}  // namespace horon
