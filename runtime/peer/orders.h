// What an order under way in the PeerEngine is: shared by the engine's own files.
#pragma once

#include <algorithm>

#include "runtime/peer/peer_engine.h"

namespace horon {

class PeerEngine::Running {
 public:
  Running(PeerEngine& engine, Order made)
      : order(std::move(made)),
        deadline(Clock::now() + engine.patience_),
        task(engine.Run(*this)) {}
  Window& window() const { return *order.window; }
  // The rank's part is left out, or nobody knows yet.
  void Miss(int rank) { unreached.push_back(rank); }
  bool Missed(int rank) const { return Has(unreached, rank); }
  // Of a rank that was missed: what went to it may have been done there.
  void LeaveOpen(int rank) { open.push_back(rank); }
  bool LeftOpen(int rank) const { return Has(open, rank); }
  // Its part stays here, for it has not asked for one.
  void Keep(int rank) { kept.push_back(rank); }
  bool Kept(int rank) const { return Has(kept, rank); }
  // Nothing goes to it, or nothing more.
  bool Out(int rank) const { return Missed(rank) || Kept(rank); }
  bool Late() const { return Clock::now() >= deadline; }

  Order order;
  Clock::time_point deadline;
  std::vector<int64_t> unreached, open, kept;
  bool paid = false;  // the window's values have changed by what was owed
  RootTask task;  // last: its frames use the others

 private:
  static bool Has(const std::vector<int64_t>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
};

// Ready in the next cycle: for slots that somebody else has for the moment.
class PeerEngine::NextCycle final : public Waitable {
 public:
  explicit NextCycle(PeerEngine& engine) : engine_(engine), from_(engine.cycle_) {
    engine.looks_again_ = true;
  }
  bool Ready() override {
    if (engine_.cycle_ != from_) return true;
    engine_.looks_again_ = true;
    return false;
  }

 private:
  PeerEngine& engine_;
  uint64_t from_;
};

}  // namespace horon
