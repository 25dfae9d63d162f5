// The whole road with thread ranks: process sets.
#include <algorithm>

#include "runtime/c_process_sets.h"
#include "test/support/road.h"

namespace horon {
namespace {

using test::Layouts;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

TEST_CASE("process sets run side by side; outsiders are refused") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      const auto even = me.AddProcessSet({0, 2});
      const auto odd = me.AddProcessSet({1, 3});
      EXPECT(even.ok() && odd.ok() && even.value() == 1 && odd.value() == 2, "numbers of the sets");
      EXPECT(!me.AddProcessSet({0, 2}).ok(), "the same set twice");
      for (int i = 0; i < 20; ++i) {
        std::vector<float> mine(500, static_cast<float>(me.rank())), all(500, 1);
        Request request = Tensor("mine", "sum", {500});
        request.process_set = me.rank() % 2 == 0 ? even.value() : odd.value();
        auto work = me.Submit(request, mine.data(), mine.data());
        EXPECT(me.Reduce("all", "sum", all).ok() && all[7] == 4, "the whole job's sum");
        EXPECT(me.Wait(*work.value()).ok() && mine[499] == (me.rank() % 2 == 0 ? 2 : 4),
               "the set's sum");
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("ranks that add different process sets are told so, and may try again") {
  Verdicts verdicts;
  World(3).Run([&](Rank& me) {
    const auto wrong =
        me.AddProcessSet(me.rank() == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 1});
    EXPECT(!wrong.ok() && wrong.status().code() == Code::kInvalidArgument, "no error");
    EXPECT(wrong.status().message().find("[1, 2]") != std::string::npos, wrong.status().message());
    const auto right = me.AddProcessSet({0, 1});
    EXPECT(right.ok() && right.value() == 1, "the second try");
  });
  RequireNone(verdicts);
}

TEST_CASE("sets are formed by their own ranks, side by side, and used at once") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      const std::vector<int> mine = me.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
      const auto pair = FormProcessSet(me.runtime(), mine);
      const auto again = FormProcessSet(me.runtime(), mine);
      EXPECT(pair.ok() && again.ok() && pair.value() == again.value(), "forming");
      for (int i = 0; i < 10; ++i) {
        std::vector<float> values(300, static_cast<float>(me.rank()));
        Request request = Tensor("in the pair", "sum", {300});
        request.process_set = pair.value();
        EXPECT(me.Run(request, values.data(), values.data()).ok(), "in the pair");
        EXPECT(values[299] == (me.rank() < 2 ? 1 : 5), "the pair's sum");
      }
      std::vector<float> all(3, 1);
      EXPECT(me.Reduce("all", "sum", all).ok() && all[0] == 4, "the whole job's sum");
      // One of the same ranks that the program adds is another one.
      const auto added = me.AddProcessSet({0, 1});
      EXPECT(added.ok() && added.value() != pair.value(), "added beside the formed one");
      EXPECT(!me.AddProcessSet({0, 1}).ok(), "added twice");
      EXPECT(RemoveProcessSet(me.runtime(), added.value()).ok(), "removed");
      EXPECT(FormProcessSet(me.runtime(), mine).value() == pair.value(), "it stays");
      EXPECT(!FormProcessSet(me.runtime(), std::vector<int>{(me.rank() + 1) % 4}).ok(),
             "formed by an outsider");
    });
    RequireNone(verdicts);
  }
}

// A set of these two ranks is added, used by them, and removed while their tensors still travel.
void UseAndRemove(Rank& me, const std::vector<int>& ranks, Verdicts& verdicts) {
  const bool in = std::find(ranks.begin(), ranks.end(), me.rank()) != ranks.end();
  const auto set = me.AddProcessSet(ranks);
  EXPECT(set.ok(), set.status().message());
  std::vector<float> values(20000, 1);
  std::shared_ptr<Work> rows, sum, last;
  if (in) {
    Request request = Tensor("rows", "allgather", {me.rank() + 1});
    request.process_set = set.value();
    rows = me.Submit(request, values.data(), nullptr).value();
    request = Tensor("sum", "sum", {20000});
    request.process_set = set.value();
    sum = me.Submit(request, values.data(), values.data()).value();
    if (me.rank() == ranks[0]) {  // the other never submits this one
      request = Tensor("never", "sum", {1});
      request.process_set = set.value();
      static float lone[3];
      last = me.Submit(request, &lone[me.rank()], &lone[me.rank()]).value();
    }
  }
  const Status removed = me.RemoveProcessSet(set.value());
  EXPECT(removed.ok(), removed.message());
  if (!in) return;
  for (const auto& work : {rows, sum}) {
    const Status status = me.Wait(*work);
    EXPECT(status.ok() || status.code() == Code::kInvalidArgument, status.message());
  }
  if (sum->status().ok()) EXPECT(values[19999] == 2, "a wrong sum");
  if (last)
    EXPECT(me.Wait(*last).code() == Code::kInvalidArgument, "what was pending in a removed set");
}

TEST_CASE("process sets come and go under tensors that still travel in them") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(3, layout).Run([&](Rank& me) {
      const std::vector<std::vector<int>> kinds = {{0, 1}, {1, 2}, {0, 1, 2}, {0, 2}};
      for (int round = 0; round < 24; ++round) {
        const std::vector<int>& ranks = kinds[static_cast<size_t>(round) % 4];
        if (ranks.size() == 3) continue;
        UseAndRemove(me, ranks, verdicts);
      }
      std::vector<float> all(3, 1);
      EXPECT(me.Reduce("all", "sum", all).ok() && all[0] == 3, "the job goes on");
    });
    RequireNone(verdicts);
  }
}

}  // namespace
}  // namespace horon
