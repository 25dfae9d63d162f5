// Wire: the two messages of negotiation and their encoding. Fixed schema, little endian; a decoder
// trusts no length and no number, so that any bytes give either a message or a Status.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/recycler.h"
#include "runtime/base/status.h"
#include "runtime/core/activity.h"
#include "runtime/core/timeline_order.h"
#include "runtime/core/tuning.h"
#include "runtime/core/wire_bytes.h"
#include "runtime/op/request.h"

namespace horon {

using CacheIds = RecycledVector<uint64_t>;

// From a rank to the coordinator.
struct Report {
  uint64_t number = 0;  // 1, 2, ... of this rank: one that is missing was lost on the way
  // Decisions this rank has applied: until then evicted cache ids are remembered.
  uint64_t heard = 0;
  CacheIds bits;                  // of requests equal to the ones remembered
  std::vector<Request> requests;  // all others
  bool leaving = false;
  bool ask = false;                  // something here waits in vain: why?
  bool describe = false;             // with ask: tell me what is pending
  std::optional<Activity> activity;  // the answer to an inquiry
  std::string given_up;              // why this rank gives itself up, which ends the job
  bool unlock = false;               // it wants what the locked schedule has not
  uint64_t uneven = 0;               // with unlock: LockedSchedule::Uneven, after waiting in vain
  std::optional<uint64_t> started;   // the answer to `stop`: batches of schedules so far
  std::optional<int64_t> clock;      // what does rank 0's clock say? Asked at this time of mine
};

// What was decided about one name that ranks did not agree on before in just this way.
struct Verdict {
  uint64_t cache_id = 0;  // under which it is to be remembered; 0: not at all
  int32_t process_set = 0;
  std::string name;
  Status status;  // ok: run it
  Agreement agreed;
  int32_t only_rank = -1;       // >= 0: concerns this rank only
  std::vector<int32_t> joined;  // ranks that run it without having asked for it, ascending
  Request stand_in;             // and what they are taken to have asked for, if there are any
  // Not exchanged: outputs are what the inputs are. With only_rank: there, where it came too late;
  // the others were through with it before.
  bool kept = false;
};

// From the coordinator to every rank, the same bytes for all.
struct Decision {
  uint64_t sequence = 0;  // 1, 2, ...
  Tuning tuning;          // rank 0's, of what this decision runs: plans must come out alike
  CacheIds evicted;       // to forget, after the verdicts
  // In which every rank runs them: cache ids of requests agreed before; 0: the next verdict.
  CacheIds order;
  std::vector<Verdict> verdicts;
  std::vector<int32_t> left;  // ranks that have left the job
  bool inquire = false;       // every rank is to answer with its activity
  bool may_lock = false;      // rank 0's HORON_LOCK_SCHEDULE: schedules must come out alike
  bool stop = false;          // start nothing more of the locked schedule, and say what was started
  // The schedule is void; its batches up to this number run, all others are taken back.
  std::optional<uint64_t> resume;
  uint64_t uneven = 0;  // with resume: from which tensor on its batch was incomplete; 0: it was not
  int32_t lost = -1;  // >= 0: this rank is given up, which ends the job
  std::string lost_because;
  std::vector<std::string> description;  // what is pending and why: answer to a rank that asked
  std::optional<TimelineOrder> timeline;
  std::vector<ClockAnswer> clocks;  // to the ranks that have asked
  int64_t clock_told = 0;           // what rank 0's clock said when these were sent
};

WireBytes Encode(const Report& report);
WireBytes Encode(const Decision& decision);
// Reports on their way up, each with the rank that it is from. What several ranks say in a row in
// the same words, each once, travels once: in a steady step that is what a whole node says.
class Bundle {
 public:
  void Add(int32_t rank, std::span<const std::byte> report);
  bool empty() const { return said_.empty(); }
  WireBytes Take();  // encoded; empty afterwards

 private:
  struct Said {
    RecycledVector<int32_t> ranks;
    WireBytes report;
  };
  RecycledVector<Said> said_;
};
using RankReport = std::pair<int, WireBytes>;
Result<RecycledVector<RankReport>> DecodeBundle(std::span<const std::byte> bytes, int ranks);
// kInternal with what is wrong. `ranks` bounds rank numbers.
Result<Report> DecodeReport(std::span<const std::byte> bytes);
Result<Decision> DecodeDecision(std::span<const std::byte> bytes, int ranks);

}  // namespace horon
