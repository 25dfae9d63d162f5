// The whole road with thread ranks: some have joined while the others go on.
#include <algorithm>
#include <latch>
#include <set>

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

constexpr int kRanks = 4;

// Who has joined while the others run a round.
struct Round {
  std::set<int> joined;
  bool there(int rank) const { return !joined.contains(rank); }
  int count() const { return kRanks - static_cast<int>(joined.size()); }
  template <typename F>
  void ForThere(F&& f) const {
    for (int r = 0; r < kRanks; ++r) {
      if (there(r)) f(r);
    }
  }
};

bool Near(float a, float b) { return std::abs(a - b) <= 1e-5f * std::max(1.0f, std::abs(b)); }

// What each rank has in place i: whole numbers, negative ones too.
float Value(int rank, size_t i) { return static_cast<float>(static_cast<int>(i % 7) - 3 - rank); }

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

float Expected(const std::string& op, const Round& round, size_t i, double prescale) {
  double sum = 0, least = 1e30, most = -1e30, product = 1;
  round.ForThere([&](int r) {
    const double value = prescale * static_cast<double>(Value(r, i));
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
    product *= value;
  });
  if (op == "average") return static_cast<float>(sum / kRanks);
  if (op == "min") return static_cast<float>(least);
  if (op == "max") return static_cast<float>(most);
  if (op == "product") return static_cast<float>(product);
  return static_cast<float>(sum);
}

void Reductions(Rank& me, const Round& round, Verdicts& verdicts) {
  for (const char* op : {"sum", "average", "min", "max", "product"}) {
    for (const size_t count : {size_t{1}, size_t{50}, size_t{30000}}) {
      for (const double prescale : {1.0, -2.0}) {
        std::vector<float> values = Values(me.rank(), count);
        Request request =
            Tensor(std::string(op) + std::to_string(count) + (prescale < 0 ? "-" : ""), op,
                   {static_cast<int64_t>(count)});
        request.prescale = prescale;
        const Status status = me.Run(request, values.data(), values.data());
        EXPECT(status.ok(), status.message());
        for (size_t i = 0; i < count; ++i) {
          if (Near(values[i], Expected(op, round, i, prescale))) continue;
          EXPECT(false,
                 request.name + ": " + std::to_string(values[i]) + " at " + std::to_string(i));
          break;
        }
      }
    }
  }
}

// Many at once, so that what has and what has not been asked for by all shares a batch.
void Fused(Rank& me, const Round& round, Verdicts& verdicts) {
  std::vector<std::vector<float>> tensors;
  std::vector<std::shared_ptr<Work>> works;
  for (size_t t = 0; t < 20; ++t) tensors.push_back(Values(me.rank(), t * t + 1));
  for (size_t t = 0; t < tensors.size(); ++t) {
    auto& values = tensors[t];
    auto work =
        me.Submit(Tensor("fused" + std::to_string(t), "sum", {static_cast<int64_t>(values.size())}),
                  values.data(), values.data());
    works.push_back(work.value());
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT(me.Wait(*works[t]).ok(), works[t]->status().message());
    EXPECT(Near(tensors[t].back(), Expected("sum", round, t * t, 1)), "fused " + std::to_string(t));
  }
}

void Rows(Rank& me, const Round& round, Verdicts& verdicts) {
  std::shared_ptr<Work> work;
  const std::vector<float> mine = Values(me.rank(), static_cast<size_t>(me.rank() + 1) * 3);
  Status status =
      me.Run(Tensor("rows", "allgather", {me.rank() + 1, 3}), mine.data(), nullptr, &work);
  EXPECT(status.ok(), status.message());
  std::vector<float> want;
  round.ForThere([&](int r) {
    const auto theirs = Values(r, static_cast<size_t>(r + 1) * 3);
    want.insert(want.end(), theirs.begin(), theirs.end());
  });
  const Output& gathered = work->outputs()[0];
  const auto* data = reinterpret_cast<const float*>(gathered.data);
  EXPECT((gathered.shape() == Shape{static_cast<int64_t>(want.size()) / 3, 3}), "shape");
  EXPECT(std::equal(want.begin(), want.end(), data), "allgather");
  for (int r = 0; r < kRanks; ++r)
    EXPECT(gathered.received_splits[static_cast<size_t>(r)] == (round.there(r) ? r + 1 : 0),
           "rows");
}

void Exchange(Rank& me, const Round& round, Verdicts& verdicts) {
  std::shared_ptr<Work> work;
  std::vector<float> mine(2 * kRanks);
  for (size_t i = 0; i < mine.size(); ++i)
    mine[i] = static_cast<float>(10 * me.rank()) + static_cast<float>(i);
  Status status = me.Run(Tensor("swap", "alltoall", {2 * kRanks}), mine.data(), nullptr, &work);
  EXPECT(status.ok(), status.message());
  const auto* got = reinterpret_cast<const float*>(work->outputs()[0].data);
  EXPECT(work->outputs()[0].shape() == Shape{2 * round.count()}, "alltoall's shape");
  round.ForThere([&](int r) {
    EXPECT(got[0] == static_cast<float>(10 * r + 2 * me.rank()), "alltoall");
    got += 2;
  });
  std::vector<float> values = Values(me.rank(), kRanks * 3);
  status = me.Run(Tensor("parts", "reduce_scatter:op=average", {kRanks, 3}), values.data(), nullptr,
                  &work);
  EXPECT(status.ok(), status.message());
  const auto* part = reinterpret_cast<const float*>(work->outputs()[0].data);
  EXPECT((work->outputs()[0].shape() == Shape{1, 3}), "reduce_scatter's shape");
  const size_t first = static_cast<size_t>(me.rank()) * 3;
  for (size_t i = 0; i < 3; ++i)
    EXPECT(Near(part[i], Expected("average", round, first + i, 1)), "reduce_scatter");
}

void Rooted(Rank& me, const Round& round, Verdicts& verdicts) {
  for (int root = 0; root < kRanks; ++root) {
    std::vector<float> values = Values(me.rank(), 100);
    const Status status =
        me.Reduce("from" + std::to_string(root), "broadcast:root=" + std::to_string(root), values);
    if (round.there(root)) {
      EXPECT(status.ok() && values == Values(root, 100), "broadcast");
    } else {
      EXPECT(status.code() == Code::kInvalidArgument, "no error for a root that has joined");
    }
  }
  EXPECT(me.Run(Tensor("barrier", "barrier", {0}), nullptr, nullptr).ok(), "barrier");
}

// Gradients that are orthogonal are added, and equal ones averaged: whoever has joined counts as no
// gradient, so nothing changes by it.
void Adasum(Rank& me, const Round& round, Verdicts& verdicts) {
  for (const char* algorithm : {"halving", "doubling", "tree", "ring,rings=1.3.0.2/0.1.2.3"}) {
    std::vector<float> own(5000, 0.0f), equal(5000, 3.0f);
    own[static_cast<size_t>(me.rank())] = 2;
    const std::string op = std::string("adasum:algo=") + algorithm;
    Status status = me.Reduce(op + "own", op, own);
    EXPECT(status.ok(), status.message());
    for (int r = 0; r < kRanks; ++r)
      EXPECT(Near(own[static_cast<size_t>(r)], round.there(r) ? 2 : 0), op + " of orthogonal ones");
    status = me.Reduce(op + "equal", op, equal);
    EXPECT(status.ok() && Near(equal[4999], 3), op + " of equal ones");
  }
}

// The mean over those who are there is kept, which it is only if all are in the same round.
void Gossip(Rank& me, const Round& round, Verdicts& verdicts) {
  float mean = 0;
  round.ForThere([&](int r) { mean += static_cast<float>(r) / static_cast<float>(round.count()); });
  for (const std::string op : {"dissemination", "gossip:graph=one_peer_exponential"}) {
    std::vector<float> value(1, static_cast<float>(me.rank()));
    const Status status = me.Reduce("of " + op, op, value);
    EXPECT(status.ok(), status.message());
    EXPECT(me.Reduce("mass", "sum", value).ok(), "sum");
    EXPECT(Near(value[0], mean * static_cast<float>(round.count())), op + " lost something");
  }
}

void Sparse(Rank& me, const Round& round, Verdicts& verdicts) {
  std::vector<float> values(8, static_cast<float>(me.rank() + 1));
  const Status status = me.Reduce("topk", "topk:count=8", values);
  EXPECT(status.ok(), status.message());
  float want = 0;
  round.ForThere([&](int r) { want += static_cast<float>(r + 1) / kRanks; });
  EXPECT(Near(values[3], want), "topk");
}

void RunAll(Rank& me, const Round& round, Verdicts& verdicts) {
  Reductions(me, round, verdicts);
  Fused(me, round, verdicts);
  Rows(me, round, verdicts);
  Exchange(me, round, verdicts);
  Rooted(me, round, verdicts);
  Adasum(me, round, verdicts);
  Gossip(me, round, verdicts);
  Sparse(me, round, verdicts);
}

TEST_CASE("every op without the ranks that have joined, and with them when they are back") {
  const std::vector<Round> rounds = {{{}},     {{3}},    {{}},        {{0}},
                                     {{0, 2}}, {{1, 3}}, {{0, 1, 2}}, {{}}};
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(kRanks, layout).Run([&](Rank& me) {
      for (const Round& round : rounds) {
        if (round.there(me.rank())) RunAll(me, round, verdicts);
        const auto last = me.Join();
        EXPECT(last.ok(), last.status().message());
        EXPECT(round.there(last.value()), "who joined last");
        std::vector<float> same(1, static_cast<float>(last.value()));
        EXPECT(me.Reduce("last", "average", same).ok(), "after the join");
        EXPECT(same[0] == static_cast<float>(last.value()), "ranks disagree on who was last");
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("without remembering and without fusing, joining works too") {
  WorldOptions options;
  options.configure = [](Config& c) { c.cache_capacity = 0, c.fusion_bytes = 0; };
  Verdicts verdicts;
  World(kRanks, options).Run([&](Rank& me) {
    const Round round{{1}};
    if (round.there(me.rank())) RunAll(me, round, verdicts);
    EXPECT(me.Join().ok(), "join");
  });
  RequireNone(verdicts);
}

TEST_CASE("ranks with more and fewer batches: what was pending at join counts") {
  Verdicts verdicts;
  World(kRanks).Run([&](Rank& me) {
    for (int epoch = 0; epoch < 5; ++epoch) {
      const int batches = 3 + (me.rank() + epoch) % kRanks;
      std::vector<std::vector<float>> values(8, std::vector<float>(257, 1));
      std::vector<std::shared_ptr<Work>> works;
      for (int b = 0; b < batches; ++b) {
        auto& mine = values[static_cast<size_t>(b)];
        works.push_back(
            me.Submit(Tensor("b" + std::to_string(b), "sum", {257}), mine.data(), mine.data())
                .value());
      }
      EXPECT(me.Join().ok(), "join");
      for (int b = 0; b < batches; ++b) {
        EXPECT(me.Wait(*works[static_cast<size_t>(b)]).ok(), "pending at join");
        int with = 0;
        for (int r = 0; r < kRanks; ++r) with += b < 3 + (r + epoch) % kRanks;
        EXPECT(values[static_cast<size_t>(b)][256] == static_cast<float>(with),
               "batch " + std::to_string(b));
      }
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("a joined rank in a process set; a tensor submitted behind one's own join is refused") {
  Verdicts verdicts;
  // Rank 2 joins when "late" is refused: had all joined before, it would be a tensor of later on.
  std::latch refused(1);
  World(kRanks).Run([&](Rank& me) {
    const auto set = me.AddProcessSet({0, 1, 3});
    auto joined = me.rank() == 1 ? me.StartJoin() : Result<std::shared_ptr<Work>>(nullptr);
    std::vector<float> late(4, 1), values(4, 1);
    if (me.rank() == 1) {
      EXPECT(me.Reduce("late", "sum", late).message().find("has joined") != std::string::npos,
             "behind one's own join");
      refused.count_down();
    }
    if (me.rank() == 2) refused.wait();
    if (me.rank() == 0 || me.rank() == 3) {
      Request request = Tensor("in the set", "average", {4});
      request.process_set = set.value();
      EXPECT(me.Run(request, values.data(), values.data()).ok(), "in the set");
      EXPECT(Near(values[0], 2.0f / 3), "average in the set");
    }
    if (me.rank() == 1) {
      EXPECT(me.Wait(*joined.value()).ok(), "join");
    } else {
      EXPECT(me.Join().ok(), "join");
    }
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
