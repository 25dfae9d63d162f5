// Adasum through the memory of a node, with thread ranks: any number of them takes that way, with
// the bits of halving by messages.
#include "test/support/road.h"
#include "test/unit/ops/adasum_bucket.h"

namespace horon {
namespace {

using test::Bytes;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Values;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// Of a bucket's tensors: nothing, less than ranks, odd, a chunk of a lane and more, more than a
// lane's memory for a row.
constexpr int64_t kCounts[] = {1, 0, 5, 2500, 70'001, 300'001};

struct Way {
  DataType dtype;
  double postscale = 1;
  bool in_place = false;
};

// By tensor, what this rank got.
std::vector<Bytes> Results(Rank& me, const std::string& op, const Way& way, bool fused,
                           Verdicts& verdicts) {
  std::vector<Request> requests;
  std::vector<Bytes> inputs, outputs;
  unsigned seed = 1;
  for (const int64_t count : kCounts) {
    requests.push_back(Tensor("t" + std::to_string(seed), op, {count}, way.dtype));
    requests.back().postscale = way.postscale;
    inputs.push_back(
        test::Encode(way.dtype, test::Gradient(way.dtype, me.rank(), count, seed++)));
    outputs.emplace_back(inputs.back().size(), std::byte{0xee});
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    from.push_back(inputs[i].data());
    to.push_back(way.in_place ? inputs[i].data() : outputs[i].data());
  }
  if (fused) {
    const auto work = me.SubmitGroup(requests, from, to, "all");
    EXPECT(work.ok() && me.Wait(*work.value()).ok(), "no result of the group");
  } else {
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT(me.Run(requests[i], from[i], to[i]).ok(), "no result of " + requests[i].name);
  }
  return way.in_place ? inputs : outputs;
}

void Compare(Rank& me, const Way& way, Verdicts& verdicts) {
  Counter& swapped = me.runtime().counters()["lane.swapped"];
  const std::string what = std::string(NameOf(way.dtype)) + (way.in_place ? ", in place" : "");
  const std::vector<Bytes> sent = Results(me, "adasum:algo=halving", way, true, verdicts);
  EXPECT(swapped.value() == 0, "halving went through the lane");
  const std::vector<Bytes> fused = Results(me, "adasum:small=0", way, true, verdicts);
  EXPECT(swapped.value() > 0, "the lane was not taken");
  const std::vector<Bytes> lone = Results(me, "adasum:small=0", way, false, verdicts);
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT(fused[i] == sent[i], "other bits of tensor " + std::to_string(i) + ", " + what);
    EXPECT(lone[i] == sent[i], "other bits of lone tensor " + std::to_string(i) + ", " + what);
  }
  if (me.rank() != me.size() - 1) return;  // the reference takes long
  for (size_t i = 0; i < fused.size(); ++i) {
    const std::vector<Values> by_rank =
        test::Gradients(way.dtype, me.size(), kCounts[i], static_cast<unsigned>(i + 1));
    const Values got = test::Decode(way.dtype, fused[i]);
    const Values want = test::Scaled(way.postscale, test::AdasumOf(by_rank));
    EXPECT(test::GapOf(got, want, by_rank) <= test::AdasumTolerance(way.dtype, me.size()),
           "tensor " + std::to_string(i) + " is not the reference tree's, " + what);
  }
}

TEST_CASE("adasum through a lane has the bits of halving, for any number of ranks",
          "[adasum][lane]") {
  const Way ways[] = {{DataType::kFloat32},
                      {DataType::kBFloat16, 0.5},
                      {DataType::kFloat64, 0.25, true}};
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12}) {
    for (const Way& way : ways) {
      INFO(ranks << " ranks");
      Verdicts verdicts;
      World(ranks).Run([&](Rank& me) { Compare(me, way, verdicts); });
      RequireNone(verdicts);
    }
  }
}

}  // namespace
}  // namespace horon
