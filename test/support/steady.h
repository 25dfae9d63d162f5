// What the tests of the locked schedule share: a step that comes again and again, the layouts in
// which it runs, and how a job settles into it.
#pragma once

#include <algorithm>
#include <barrier>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/support/road.h"

namespace horon::test {

inline int64_t Count(Rank& me, const std::string& name) {
  return me.runtime().counters()[name].value();
}

// Tensors that are reduced at once, in place: rank r has r + value(t) everywhere, and one more for
// Adasum, which gives the mean of these, as they are parallel and none is zero.
class Step {
 public:
  explicit Step(int tensors, int64_t count = 3, std::string op = "sum") : op_(std::move(op)) {
    for (int t = 0; t < tensors; ++t) values_.emplace_back(static_cast<size_t>(count * (1 + t)));
  }
  // With so many elements each.
  explicit Step(const std::vector<size_t>& counts, std::string op) : op_(std::move(op)) {
    for (const size_t count : counts) values_.emplace_back(count);
  }
  void Submit(Rank& me, float value, int first = 0, int last = -1) {
    const int end = last < 0 ? static_cast<int>(values_.size()) : last;
    for (int t = first; t < end; ++t) {
      auto& tensor = values_[static_cast<size_t>(t)];
      std::fill(tensor.begin(), tensor.end(), static_cast<float>(me.rank()) + value + more());
      works_.push_back(
          me.Submit(Tensor("t" + std::to_string(t), op_, {static_cast<int64_t>(tensor.size())}),
                    tensor.data(), tensor.data())
              .value());
    }
  }
  bool done() const {
    return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->done(); });
  }
  // Waits for all as one first.
  bool WaitAll(Rank& me, float value) {
    std::vector<Work*> works;
    for (const auto& work : works_) works.push_back(work.get());
    return me.runtime().Wait(works, std::chrono::nanoseconds::max()) && Wait(me, value);
  }
  // Whether all hold what the sum must be.
  bool Wait(Rank& me, float value, size_t tensors = 1000) {
    bool right = true;
    for (auto& work : std::exchange(works_, {})) right = me.Wait(*work).ok() && right;
    const int n = me.size();
    const float sum = static_cast<float>(n * (n - 1) / 2) + static_cast<float>(n) * value;
    const float want = more() == 0 ? sum : sum / static_cast<float>(n) + more();
    const float gap = more() * 1e-5f * want;
    for (size_t t = 0; t < std::min(tensors, values_.size()); ++t) {
      for (float v : values_[t]) right = right && std::abs(v - want) <= gap;
    }
    return right;
  }

 private:
  float more() const { return op_ == "sum" ? 0 : 1; }

  std::string op_;
  std::vector<std::vector<float>> values_;
  std::vector<std::shared_ptr<Work>> works_;
};

// Where all ranks share a lane, where each is a node, and where a node has several.
inline std::vector<WorldOptions> Places() {
  WorldOptions apart, pairs;
  apart.local_size = 1;
  pairs.local_size = 2;
  return {{}, apart, pairs};
}

inline std::vector<std::pair<int, WorldOptions>> SizesAndPlaces(const std::vector<int>& sizes) {
  std::vector<std::pair<int, WorldOptions>> all;
  for (int size : sizes) {
    for (const WorldOptions& place : Places()) all.emplace_back(size, place);
  }
  return all;
}

// Runs steps until all ranks have run one that was locked.
class Settler {
 public:
  explicit Settler(int ranks) : ranks_(ranks), together_(ranks) {}
  template <typename Steps>
  void operator()(Rank& me, Steps& step, Verdicts& verdicts) {
    for (int i = 0; i < 2000; ++i) {
      const int64_t before = Count(me, "schedule.tensors");
      step.Submit(me, static_cast<float>(i));
      EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum while settling");
      locked_ += Count(me, "schedule.tensors") > before;
      together_.arrive_and_wait();
      const bool done = locked_ == ranks_;
      together_.arrive_and_wait();
      locked_ = 0;
      if (done) return;
    }
    EXPECT(false, "the steady job was not locked, but " +
                      std::to_string(Count(me, "schedule.locks")) + " times since it began");
  }

 private:
  int ranks_;
  std::barrier<> together_;
  std::atomic<int> locked_{0};
};

}  // namespace horon::test
