// What negotiation costs at scale: the real coordinator, wire format and bundles of the control
// tree, with ranks and nodes that are only simulated. Prints one JSON line a step.
//
//   horon_bench_negotiation NODES RANKS_PER_NODE TENSORS STEPS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/coordinator.h"

namespace horon {
namespace {

struct Step {
  int64_t messages_between = 0, messages_inside = 0;  // between nodes; inside all nodes
  int64_t bytes_up = 0, bytes_down = 0;               // of a leader's edge to the coordinator
  int64_t report = 0;                                 // of one rank
  double coordinator_ms = 0;                          // to hear all and decide
};

class Job {
 public:
  Job(int nodes, int each, int tensors)
      : nodes_(nodes),
        each_(each),
        sets_(nodes * each),
        coordinator_(nodes * each, ops_, sets_, 1 << 20),
        ids_(static_cast<size_t>(tensors)) {
    for (int t = 0; t < tensors; ++t) {
      Request request;
      request.name = "DistributedOptimizer.allreduce.layer" + std::to_string(t) + ".weight";
      request.op = "average";
      request.shape = {256, 256};
      index_[request.name] = t;
      requests_.push_back(request);
    }
  }

  Step Run() {
    Step step;
    Report report;  // all ranks have the same to say
    report.heard = heard_;
    report.number = ++number_;
    for (size_t t = 0; t < requests_.size(); ++t) {
      if (ids_[t] != 0) {
        report.bits.push_back(ids_[t]);
      } else {
        report.requests.push_back(requests_[t]);
      }
    }
    const WireBytes bytes = Encode(report);
    step.report = static_cast<int64_t>(bytes.size());
    for (int node = 0; node < nodes_; ++node) {
      Bundle bundle;
      for (int i = 0; i < each_; ++i) bundle.Add(node * each_ + i, bytes);
      const WireBytes up = bundle.Take();
      step.bytes_up = static_cast<int64_t>(up.size());
      Time(step, [&] { Hear(up); });
    }
    WireBytes down;
    Time(step, [&] { down = Encode(coordinator_.Decide()); });
    step.bytes_down = static_cast<int64_t>(down.size());
    step.messages_between = 2 * (nodes_ - 1);
    step.messages_inside = 2LL * nodes_ * (each_ - 1);
    Apply(DecodeDecision(down, nodes_ * each_).value());
    return step;
  }

 private:
  template <typename F>
  static void Time(Step& step, F&& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    step.coordinator_ms +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  void Hear(const WireBytes& bundle) {
    auto reports = DecodeBundle(bundle, nodes_ * each_);
    for (auto& [rank, bytes] : reports.value()) {
      const Status heard = coordinator_.Hear(rank, DecodeReport(bytes).value());
      if (!heard.ok()) std::abort();
    }
  }
  void Apply(const Decision& decision) {
    heard_ = decision.sequence;
    for (const Verdict& v : decision.verdicts) {
      if (!v.status.ok()) std::abort();
      ids_[static_cast<size_t>(index_.at(v.name))] = v.cache_id;
    }
    if (decision.order.size() != requests_.size()) std::abort();
  }

  int nodes_, each_;
  OpTable ops_;
  ProcessSets sets_;
  Coordinator coordinator_;
  std::vector<Request> requests_;
  std::map<std::string, int> index_;
  std::vector<uint64_t> ids_;
  uint64_t heard_ = 0, number_ = 0;
};

}  // namespace
}  // namespace horon

int main(int count, char** values) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s NODES RANKS_PER_NODE TENSORS STEPS\n", values[0]);
    return 2;
  }
  horon::Job job(std::atoi(values[1]), std::atoi(values[2]), std::atoi(values[3]));
  for (int i = 0; i < std::atoi(values[4]); ++i) {
    const horon::Step step = job.Run();
    std::printf(
        "{\"step\": %d, \"messages_between\": %lld, \"messages_inside\": %lld, \"bytes_up\": %lld, "
        "\"bytes_down\": %lld, \"report\": %lld, \"coordinator_ms\": %.3f}\n",
        i + 1, static_cast<long long>(step.messages_between),
        static_cast<long long>(step.messages_inside), static_cast<long long>(step.bytes_up),
        static_cast<long long>(step.bytes_down), static_cast<long long>(step.report),
        step.coordinator_ms);
  }
  return 0;
}
