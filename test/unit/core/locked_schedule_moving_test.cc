// The locked schedule of steps that also move tensors: broadcast, allgather, alltoall,
// reduce_scatter and top-k, small ones by messages and large ones through the lane.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "test/support/steady.h"

namespace horon {
namespace {

using test::Count;
using test::Rank;
using test::RequireNone;
using test::Settler;
using test::SizesAndPlaces;
using test::Tensor;
using test::Verdicts;
using test::World;

// One call of a step, of rows of two floats. Every value says which rank it comes from, and in
// which step, so that what is old or of another rank is seen.
struct Call {
  std::string name, op;
  int64_t rows;  // of rank 0; of an allgather and an alltoall each following rank has one more
  bool in_place = false;
  std::vector<float> input = {}, output = {};
  std::vector<int64_t> splits = {};  // of an alltoall: what is left goes to the last one
};

// Rows; large ones take the lane, of an alltoall as many as of two ranks do.
constexpr int64_t kSmall = 6, kLarge = 33'000, kTwice = 2 * kLarge;

class MovingStep {
 public:
  explicit MovingStep(int ranks)
      : root_(ranks - 1),
        calls_{{"sum", "sum", kSmall, true},
               {"small", "broadcast:root=" + std::to_string(root_), kSmall},
               {"large", "broadcast:root=" + std::to_string(root_), kLarge, true},
               {"gathered", "allgather", kSmall},
               {"exchanged", "alltoall", kSmall},
               {"much", "alltoall", kTwice},
               {"scattered", "reduce_scatter", 2 * kSmall},
               {"sparse", "topk:ratio=1,op=sum", kSmall, true},
               {"last", "sum", kLarge, true}} {}

  int tensors() const { return static_cast<int>(calls_.size()); }
  // More rows of the allgather on this rank from now on.
  void Grow(int64_t rows) { calls_[3].rows += rows; }

  void Submit(Rank& me, float step, int first = 0, int last = -1) {
    for (int c = first; c < (last < 0 ? tensors() : last); ++c) {
      Call& call = calls_[static_cast<size_t>(c)];
      const bool ragged = call.op == "allgather" || call.op == "alltoall";
      const int64_t rows = call.rows + (ragged ? me.rank() : 0);
      Request request = Tensor(call.name, call.op, {rows, 2});
      call.input.resize(static_cast<size_t>(2 * rows));
      const float first_value = Value(me.rank(), step, 0);
      for (size_t i = 0; i < call.input.size(); ++i)
        call.input[i] = first_value + static_cast<float>(i % 7);
      if (call.op == "alltoall") {
        call.splits.assign(static_cast<size_t>(me.size()), rows / me.size());
        call.splits.back() += rows % me.size();
        request.splits = call.splits;
      }
      const bool owned = ragged || call.op == "reduce_scatter";
      call.output.assign(call.in_place || owned ? 0 : call.input.size(), -1);
      void* const output = owned ? nullptr : (call.in_place ? call.input : call.output).data();
      works_.push_back({c, step, me.Submit(std::move(request), call.input.data(), output).value()});
    }
  }

  // Whether all that was submitted ended with what it must. `value`, the step's, is only asked for
  // by who settles.
  bool Wait(Rank& me, float = 0) {
    bool right = true;
    for (Begun& begun : std::exchange(works_, {}))
      right = me.Wait(*begun.work).ok() && Right(me, begun) && right;
    return right;
  }

 private:
  struct Begun {
    int call;
    float step;
    std::shared_ptr<Work> work;
  };

  // Small whole numbers: sums are exact.
  static float Value(int rank, float step, size_t i) {
    return static_cast<float>(100 * rank + static_cast<int>(step) % 50 + static_cast<int>(i % 7));
  }
  static float Sum(int ranks, float step, size_t i) {
    const auto n = static_cast<float>(ranks);
    return n * Value(0, step, i) + 50 * n * (n - 1);
  }

  bool Right(Rank& me, const Begun& begun) const {
    const Call& call = calls_[static_cast<size_t>(begun.call)];
    const int n = me.size();
    Output& output = begun.work->outputs()[0];
    const auto* values = reinterpret_cast<const float*>(output.data);
    std::vector<float> expected;
    if (call.op == "allgather") {
      for (int r = 0; r < n; ++r) {
        const int64_t rows = output.received_splits[static_cast<size_t>(r)];
        for (size_t i = 0; i < static_cast<size_t>(2 * rows); ++i)
          expected.push_back(Value(r, begun.step, i));
      }
    } else if (call.op == "alltoall") {
      for (int r = 0; r < n; ++r) {
        const int64_t rows = call.rows + r, first = rows / n * me.rank();
        const int64_t count = rows / n + (me.rank() == n - 1 ? rows % n : 0);
        for (int64_t i = 2 * first; i < 2 * (first + count); ++i)
          expected.push_back(Value(r, begun.step, static_cast<size_t>(i)));
      }
    } else if (call.op == "reduce_scatter") {
      const int64_t each = call.rows / n, more = call.rows % n;
      const int64_t first = me.rank() * each + std::min<int64_t>(me.rank(), more);
      const int64_t count = each + (me.rank() < more ? 1 : 0);
      for (int64_t i = 2 * first; i < 2 * (first + count); ++i)
        expected.push_back(Sum(n, begun.step, static_cast<size_t>(i)));
    } else {
      const bool moves = call.op.starts_with("broadcast");
      for (size_t i = 0; i < static_cast<size_t>(2 * call.rows); ++i)
        expected.push_back(moves ? Value(root_, begun.step, i) : Sum(n, begun.step, i));
    }
    return CountOf(output.shape()) == static_cast<int64_t>(expected.size()) &&
           std::equal(expected.begin(), expected.end(), values);
  }

  int root_;
  std::vector<Call> calls_;
  std::vector<Begun> works_;
};

TEST_CASE("steps that move tensors are locked, too") {
  for (const auto& [n, place] : SizesAndPlaces({2, 4})) {
    INFO(n << " ranks, " << place.local_size << " a node");
    Verdicts verdicts;
    Settler settle(n);
    std::atomic<int> quiet{0};
    World(n, place).Run([&](Rank& me) {
      MovingStep step(n);
      // More than once because a rank that gets no core for long may give the schedule up.
      for (int attempt = 0; attempt < 5; ++attempt) {
        settle(me, step, verdicts);
        const int64_t messages = Count(me, "negotiation.inproc.messages");
        const int64_t before = Count(me, "schedule.tensors");
        for (int i = 0; i < 10; ++i) {
          step.Submit(me, static_cast<float>(i));
          EXPECT(step.Wait(me), "wrong values in a locked step");
        }
        quiet += Count(me, "negotiation.inproc.messages") == messages &&
                 Count(me, "schedule.tensors") == before + 10 * step.tensors();
      }
    });
    RequireNone(verdicts);
    CHECK(quiet >= n * 2);
  }
}

TEST_CASE("other rows on one rank leave the schedule, which comes again") {
  for (const auto& [n, place] : SizesAndPlaces({2, 3})) {
    INFO(n << " ranks, " << place.local_size << " a node");
    Verdicts verdicts;
    Settler settle(n);
    World(n, place).Run([&](Rank& me) {
      MovingStep step(n);
      for (int turn = 0; turn < 3; ++turn) {
        settle(me, step, verdicts);
        if (me.rank() == turn % n) step.Grow(1 + turn);
        step.Submit(me, 3);
        EXPECT(step.Wait(me), "wrong values where a rank has more rows");
      }
      settle(me, step, verdicts);
    });
    RequireNone(verdicts);
  }
}

// The others are ahead by all that they can start; then it comes back to them.
TEST_CASE("what moves and was started ahead of a rank that turns away is taken back") {
  for (const auto& [n, place] : SizesAndPlaces({2, 3})) {
    for (const int turning : {0, n - 1}) {
      INFO(n << " ranks, " << place.local_size << " a node, rank " << turning << " turns away");
      Verdicts verdicts;
      Settler settle(n);
      std::atomic<bool> ahead{false};
      World(n, place).Run([&](Rank& me) {
        MovingStep step(n);
        for (const int first : {0, 6}) {
          settle(me, step, verdicts);
          std::vector<float> other(4, 1);
          if (me.rank() == turning) {
            ahead.wait(false);
            step.Submit(me, 5, 0, first);
            EXPECT(me.Reduce("other", "sum", other).ok(), "the other tensor");
            step.Submit(me, 5, first);
          } else {
            step.Submit(me, 5);
            if (me.rank() == (turning + 1) % n) {
              ahead = true;
              ahead.notify_all();
            }
            EXPECT(me.Reduce("other", "sum", other).ok(), "the other tensor");
          }
          EXPECT(other[3] == static_cast<float>(n), "wrong sum of the other tensor");
          EXPECT(step.Wait(me), "wrong values of what was taken back");
          settle(me, step, verdicts);
          ahead = false;
          EXPECT(me.Reduce("together", "sum", other).ok(), "all together");
        }
      });
      RequireNone(verdicts);
    }
  }
}

}  // namespace
}  // namespace horon
