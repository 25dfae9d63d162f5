// World: a whole job in one process. Each rank is a real Runtime with its own background thread;
// nodes are segments in ordinary memory, so the thread sanitizer sees the protocol that processes
// use.
//
//   World(4).Run([](Rank& me) { ... });            one node of four ranks
//   World(4, {.local_size = 2}).Run(...);          two nodes of two, with messages between them
//
// Run gives each rank a thread, joins them, and fails the test if one takes longer than the limit:
// then it prints who is still running and aborts, because a hung runtime cannot be taken down.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/runtime.h"

namespace horon::test {

struct WorldOptions {
  int local_size = 0;  // 0: all ranks on one node
  bool lanes = true;   // false: no streaming, collectives over messages only
  bool network_outlives = false;  // ranks, as MPI that tolerates deaths does
  std::function<void(Config&)> configure = [](Config&) {};
  std::function<void(int rank, Config&)> configure_rank = [](int, Config&) {};
  // Puts something around the transports that reach other ranks.
  std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport>)> wrap =
      [](int, std::unique_ptr<Transport> inner) { return inner; };
  // Of all ranks: what a launcher tells them; null: none does.
  std::shared_ptr<Losses> losses = nullptr;
  // What a rank that has failed tells the launcher.
  std::function<void(int rank, const std::string& what)> on_fault = [](int, const std::string&) {};
  std::shared_ptr<Recorder> recorder = nullptr;  // of rank 0
  // The rank's GPU; null: it has none.
  std::function<std::shared_ptr<Gpus>(int rank)> gpus = [](int) { return nullptr; };
  std::chrono::seconds limit{120};
};

// What a test does with one rank. Calls block; failures are Statuses for the test to look at.
class Rank {
 public:
  explicit Rank(Runtime& runtime) : runtime_(&runtime) {}
  int rank() const { return runtime_->rank(); }
  int size() const { return runtime_->topology().size(); }
  Runtime& runtime() { return *runtime_; }

  // Enqueues; the tensor's memory must outlive the work.
  Result<std::shared_ptr<Work>> Submit(Request request, const void* input, void* output,
                                       bool wake = true);
  Result<std::shared_ptr<Work>> SubmitGroup(std::vector<Request> requests,
                                            std::vector<const void*> inputs,
                                            std::vector<void*> outputs, const std::string& group);
  Status Wait(Work& work);
  // Submit and Wait.
  Status Run(Request request, const void* input, void* output,
             std::shared_ptr<Work>* work = nullptr);

  // In place over floats: the shortest way to a collective.
  Status Reduce(const std::string& name, const std::string& op, std::vector<float>& values);
  // Collective over all ranks. Gives the set's number.
  Result<int> AddProcessSet(const std::vector<int>& ranks);
  Status RemoveProcessSet(int id);  // collective over all ranks too
  Result<std::shared_ptr<Work>> StartJoin();
  Result<int> Join();  // waits until all ranks have joined; the last one to join

 private:
  Result<int> ChangeSets(const std::string& op, std::vector<int64_t> numbers);
  Runtime* runtime_;
};

class World {
 public:
  explicit World(int size, WorldOptions options = {});
  ~World();
  void Run(const std::function<void(Rank&)>& body);
  // Takes one rank away without a word, as a crash does to the others.
  void MarkDead(int rank, const std::string& sentence);
  const Doorbell& bell(int rank) const {  // the rank's own, which the network does not ring
    const auto node = static_cast<size_t>(topology_.node_of(rank));
    return nodes_[node]->rank(topology_.local_rank(rank)).bell;
  }
  Runtime& runtime(int rank) { return *runtimes_[static_cast<size_t>(rank)]; }

 private:
  WorldOptions options_;
  std::vector<std::shared_ptr<SharedSegment>> nodes_;
  std::shared_ptr<SharedSegment> network_;  // rings between all ranks: what MPI is in production
  Topology topology_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

}  // namespace horon::test
