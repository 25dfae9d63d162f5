// N ranks in one thread, for tests of collectives and ops without a runtime.
//
// LoopNet holds what was posted and matches sends with receives by (from, to, tag), first in first
// out. What matched is delivered some calls of Progress later, in an order drawn from the seed;
// some sends finish at once (eager), others when they are delivered (rendezvous). LoopWorld drives
// one RootTask per rank, in an order drawn from the seed, until all are done or nothing can move
// any more.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "runtime/transport/communicator.h"

namespace horon::test {

class LoopNet {
 public:
  LoopNet(int ranks, uint64_t seed);

  Status Post(int rank, Transfer& transfer, Transport* by);
  bool Progress(int rank);
  int Sender(int to, Tag tag) const;
  void Cancel(Transfer& transfer);
  // Nothing posted, nothing in flight.
  bool idle() const;
  // Transfers that the net still points at.
  int64_t lent() const;

  int64_t bytes_sent(int rank) const { return sent_[static_cast<size_t>(rank)].bytes; }
  int64_t messages_sent(int rank) const { return sent_[static_cast<size_t>(rank)].messages; }
  // The post after `more` others fails with kUnavailable.
  void FailPostAfter(int64_t more) { posts_left_ = more; }

  // All ranks of `reduction.ranks` bring their block; the last one reduces for all.
  class BlockCall;
  void Join(int rank, const BlockReduction& reduction, BlockCall& call);
  int block_reductions() const { return block_reductions_; }

 private:
  struct Message {
    Transfer* send = nullptr;        // null when eager
    std::vector<std::byte> payload;  // eager only
  };
  struct Wire {
    std::deque<Message> sends;
    std::deque<Transfer*> receives;
  };
  struct Flight {
    int to;
    int delay;  // calls of Progress
    Message message;
    Transfer* receive;
  };
  struct Sent {
    int64_t bytes = 0, messages = 0;
  };
  void Match(int to, Wire& wire);
  static void Deliver(Flight& flight);

  std::mt19937_64 random_;
  std::vector<Sent> sent_;
  int64_t posts_left_ = -1;
  std::map<std::tuple<int, int, Tag>, Wire> wires_;  // from, to, tag
  std::vector<Flight> flights_;
  std::map<std::vector<int>, std::vector<BlockCall*>> blocks_;
  int block_reductions_ = 0;
};

class LoopNet::BlockCall final : public Waitable {
 public:
  bool Ready() override { return done; }
  BlockReduction reduction;
  int rank = -1;
  bool done = false;
};

class LoopTransport final : public Transport {
 public:
  LoopTransport(LoopNet& net, int rank, bool blocks) : net_(&net), rank_(rank), blocks_(blocks) {}
  std::string_view name() const override { return "loop"; }
  bool Reaches(int) const override { return true; }
  Status Post(Transfer& transfer) override { return net_->Post(rank_, transfer, this); }
  Result<bool> Progress() override { return net_->Progress(rank_); }
  int Sender(Tag tag) override { return net_->Sender(rank_, tag); }
  void Cancel(Transfer& transfer) override { net_->Cancel(transfer); }
  bool ReducesBlocks(const BlockReduction&) const override { return blocks_; }
  Task ReduceBlock(BlockReduction reduction) override;

 private:
  LoopNet* net_;
  int rank_;
  bool blocks_;
};

// What one rank does; must not be a capturing coroutine itself (return one that takes arguments).
using RankBody = std::function<Task(Communicator&)>;

class LoopWorld {
 public:
  // As in a real job one transport reaches the ranks of the own node, another one the rest;
  // `blocks`: both reduce blocks themselves.
  LoopWorld(const Topology& topology, uint64_t seed, bool blocks = false);

  // Runs body on all ranks (or on the given ones as a group). By rank: its Status, kInternal and
  // "stuck" when nothing could move; kInternal on all ranks when all ended well but left messages
  // behind.
  std::vector<Status> Run(const RankBody& body) { return Run(all_, body); }
  std::vector<Status> Run(const std::vector<int>& ranks, const RankBody& body);

  int size() const { return static_cast<int>(all_.size()); }
  LoopNet& net() { return net_; }
  const Fabric& fabric(int rank) const { return fabrics_[static_cast<size_t>(rank)]; }

 private:
  std::mt19937_64 random_;
  LoopNet net_;
  std::vector<int> all_;
  std::vector<std::unique_ptr<LoopTransport>> transports_;
  std::vector<Fabric> fabrics_;
  Tag next_base_ = Communicator::kTags;
};

// One world, one run.
std::vector<Status> RunRanks(const Topology& topology, uint64_t seed, const RankBody& body);

// The layouts that every collective and op is tested on: one node, all apart, 2+2, 2+1, 3+2, and
// nodes whose ranks are not neighbours. 1 to 6 ranks.
std::vector<Topology> TestTopologies();

}  // namespace horon::test
