// WatchedRank: what the watch thread of a rank reads, with its Lookout and no runtime; for tests
// that make every look by hand.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/lookout.h"
#include "test/support/catch.h"

namespace horon::test {

class WatchedRank {
 public:
  using Time = Lookout::Clock::time_point;
  // With a patience of 10 s.
  WatchedRank(std::shared_ptr<SharedSegment> segment, const Topology& topology, int rank,
              OpTable& ops, const ProcessSets& sets)
      : registry_(ops),
        lookout_(std::move(segment), topology, rank, registry_, sets,
                 std::chrono::milliseconds{30'000}) {}

  void Submit(const std::string& name, Time now, int set = 0) {
    Request request;
    request.name = name;
    request.op = "sum";
    request.shape = {4};
    request.process_set = set;
    const auto what = registry_.Of(request);
    REQUIRE(what.ok());
    REQUIRE(what.value()->Claim());
    last_ = what.value()->key;
    submitted_ = now;
  }
  void Finish(const std::string& name) { registry_.Find(0, name)->Release(); }
  // Its program waits; empty: for nothing, and it computes.
  void Wait(const std::string& key) { waits_ = {key}; }
  void Unanswered(std::chrono::milliseconds time) { unanswered_ = time; }
  // What it sees of itself.
  Lookout::Look Look(Time now) const {
    Lookout::Look look;
    look.activity.callers = 1;
    look.activity.blocked = waits_.empty() ? 0 : 1;
    look.activity.waits = waits_;
    look.activity.last = last_;
    look.activity.last_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - submitted_).count();
    look.activity.doing = waits_.empty() ? "at train.py:57 in load" : "";
    look.holder = gettid();
    look.unanswered = unanswered_;
    look.now = now;
    return look;
  }
  Lookout& lookout() { return lookout_; }

 private:
  Registry registry_;
  Lookout lookout_;
  std::vector<std::string> waits_;
  std::string last_;
  Time submitted_;
  std::chrono::milliseconds unanswered_{0};
};

inline bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace horon::test
