// Lookout: sees, while this rank waits, which ranks of its node do not move, and who of them has
// not submitted what it waits for; asks neither rank 0 nor any runtime. So it can say so when rank
// 0, which judges stalls (stall.h), is itself stuck.
//
// Of the watch thread, which tells it what it sees of its own rank. It reads shared words, posts a
// notice of its own (notice.h), and rings who may be asleep. What other nodes know is the inquest's
// business (inquest.h), which asks it what this one does.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/node_letter.h"
#include "runtime/core/notice.h"
#include "runtime/core/process_sets.h"
#include "runtime/core/registry.h"
#include "runtime/core/standstill.h"
#include "runtime/transport/topology.h"

namespace horon {

class Lookout {
 public:
  using Clock = Standstill::Clock;
  // Null: a node of its own. `silence`: as for Standstill.
  Lookout(std::shared_ptr<SharedSegment> segment, const Topology& topology, int rank,
          Registry& registry, const ProcessSets& sets, std::chrono::milliseconds silence);

  struct Look {
    Activity activity;
    int holder = 0;                           // the thread that runs the cycle, or did last
    std::chrono::milliseconds unanswered{0};  // since rank 0 was asked why something waits
    Clock::time_point now;
    Wanted asked = {};  // of another node; then what this rank waits for itself does not count
    int judge = -1;     // who finds out between nodes, as far as this rank has heard
  };
  // Afterwards asked() is whether others of the node wait for what this rank has not submitted.
  void See(const Look& look);
  bool asked() const { return asked_; }
  // Whether its program waits, or rank 0 owes it an answer, or it is asked.
  bool waits() const {
    return !look_.activity.waits.empty() || look_.unanswered.count() > 0 ||
           !look_.asked.key.empty();
  }
  // Whether all who could say what Missing() tells have said it, or do not.
  bool complete() const;
  // That others stand still, or that rank 0 does not answer, and Missing(). Once for each time.
  std::optional<std::string> MustSay();
  // Who has submitted what this rank waits for and who has not, as they say themselves; empty:
  // it waits for nothing, or not for long.
  std::string Missing() const;

  // For the inquest. What was asked for, or waited for: the others of the node tell of that.
  Wanted question() const { return {mine_.wanted, mine_.calls}; }
  Clock::time_point wanted_since() const { return wanted_since_; }
  // What is known here of the node's ranks and that.
  NodeView View() const;
  // Whether View() will say no more of the others' runtimes than it does.
  bool sure() const;
  // For how long rank 0 has not answered, or has not moved if it is here.
  std::chrono::milliseconds overdue() const;
  // Who of this node's others knows of a judge: that one; -1: nobody.
  int judge() const;
  // Which runtimes of the node stand still, or that rank 0 does not answer; empty: none.
  std::string Trouble() const;
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  struct Peer {
    Standstill standstill;
    std::optional<Notice> notice;
  };
  bool Here(int rank) const { return topology_->node_of(rank) == topology_->node_of(rank_); }
  bool InJob(int local) const;
  void Want(const Look& look);
  void SeePeer(int local);
  uint64_t Answer(const Notice& asker);
  uint64_t AnswerOf(int local) const;
  bool Submitted(const Wanted& question) const;
  bool Stands(int local) const;  // another rank's runtime, for a patience
  bool Stale(int local) const;
  std::string Stuck(int local) const;
  std::string Standing(int local) const;
  // Of rank 0; here it stands still, or it answers.
  bool silent() const { return look_.unanswered >= patience_ && !Here(0); }

  std::shared_ptr<SharedSegment> segment_;
  const Topology* topology_;
  int rank_, me_;
  std::vector<int> members_;  // the node's ranks
  Registry* registry_;
  const ProcessSets* sets_;
  std::chrono::milliseconds patience_;
  std::vector<Peer> peers_;  // by local rank
  Look look_;
  Notice mine_;
  Clock::time_point wanted_since_, wanted_at_;  // for so long; told to the others then
  std::string waited_;                          // at the last look
  int64_t waited_calls_ = 0;
  bool settled_ = true;  // it waits for the same, or nothing, since the last look
  bool asked_ = false, said_silent_ = false;
};

}  // namespace horon
