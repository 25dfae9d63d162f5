// Stall: why a tensor does not become ready, and what to do about it. Rank 0's judge, pure: no
// transport, no clock of its own. Fed by the negotiator, on the holder of the baton.
//
// A rank that waits in vain asks; the judge then asks every rank what it does (Activity) and, when
// all have answered, tells apart
//   diverged  ranks wait for each other's tensors, so that none of these can ever be ready: the
//             tensors fail as soon as two rounds of answers agree. So do groups of one name that
//             differ from rank to rank, after a second, also where ranks poll and so may go on;
//   busy      a rank that is to submit still computes: a warning after `warn`, failure after
//             `busy`;
//   silent    a rank's runtime does not answer at all (stopped, or its machine hangs): after
//             `silent` it is given up, which ends the job.
// Ranks that died or left are not its business: they are known at once.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/core/activity.h"

namespace horon {

struct PendingTensor {
  std::string key;                  // "<process set>/<name>"
  std::vector<int> ready, missing;  // ranks, ascending
  std::chrono::steady_clock::time_point since;
  std::string group = {};  // "<process set>/<group>"; empty: alone
  int group_size = 0;
  uint64_t group_hash = 0;
};

struct StallLimits {  // zero: never
  std::chrono::milliseconds warn{60000}, busy{1800000}, silent{30000};
};

// "rank 3", "ranks 1, 2"
std::string Listed(const std::vector<int>& ranks);
// Ranks that wait, with all their threads, for tensors that need other such ranks. `activity`: by
// rank; empty where unknown.
std::set<int> HopelessRanks(const std::vector<PendingTensor>& pending,
                            const std::vector<std::optional<Activity>>& activity);
// Groups of one name that differ, of which every rank has submitted one: by the name's key, the
// tensors that stand for them.
std::map<std::string, std::vector<const PendingTensor*>> ClashingGroups(
    const std::vector<PendingTensor>& pending);
// One line on a tensor: who has submitted it, who not, and what those did last.
std::string DescribePending(const PendingTensor& tensor,
                            const std::vector<std::optional<Activity>>& activity,
                            std::chrono::steady_clock::time_point now);

class StallJudge {
 public:
  using Time = std::chrono::steady_clock::time_point;
  StallJudge(int size, StallLimits limits);

  struct Findings {
    bool inquire = false;                                // ask all ranks for their activity
    std::vector<std::pair<std::string, Status>> failed;  // by key
    std::vector<std::string> warnings;
    int lost = -1;  // a rank that is given up
    std::string lost_because;
  };
  // A rank waits in vain. Asked again and again while it does.
  Findings Asked(Time now, const std::vector<PendingTensor>& pending);
  // A rank has answered the inquiry.
  Findings Answered(int rank, Activity activity, Time now,
                    const std::vector<PendingTensor>& pending);
  void Left(int rank);                                   // it will not answer any more
  bool complete() const { return unanswered_.empty(); }  // everyone asked has answered
  // By rank, as it was when the rank was asked last; last_ms counts from now.
  std::vector<std::optional<Activity>> activity(Time now) const;

 private:
  void JudgeGroups(Time now, const std::vector<PendingTensor>& pending, Findings& findings);
  void JudgeDivergence(const std::vector<PendingTensor>& pending, Findings& findings);
  void JudgeTime(Time now, const std::vector<PendingTensor>& pending, Findings& findings);

  StallLimits limits_;
  std::vector<std::optional<Activity>> activity_;  // by rank, of the last round
  std::vector<Time> answered_at_;                  // by rank
  std::set<int> unanswered_, left_;
  bool inquired_ = false;
  Time inquired_at_;
  std::map<int, uint64_t> suspects_;         // hopeless in the last round -> its submits then
  std::map<std::string, uint64_t> clashes_;  // in the last round -> submits of all its ranks then
  std::map<std::string, Time> warned_;       // by key
};

}  // namespace horon
