// What negotiation costs at scale: the real coordinator, wire format and bundles of the control
// tree, and the real gates of a locked step, with ranks and nodes that are only simulated. Prints
// one JSON line a step; the last two of one in which some tensors are missing, and of a locked one.
//
//   horon_bench_negotiation NODES RANKS_PER_NODE TENSORS STEPS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/core/coordinator.h"
#include "runtime/core/start_gate.h"
#include "runtime/transport/spans.h"

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

  // Without every so many-th tensor; 0: with all.
  Step Run(size_t without = 0) {
    Step step;
    submitted_ = 0;
    Report report;  // all ranks have the same to say
    report.heard = heard_;
    report.number = ++number_;
    for (size_t t = 0; t < requests_.size(); ++t) {
      if (without != 0 && t % without == without / 2) continue;
      ++submitted_;
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
      if (node > 0) ++step.messages_between;  // the coordinator is on the first one
      Time(step, [&] { Hear(up); });
    }
    WireBytes down;
    Time(step, [&] { down = Encode(coordinator_.Decide()); });
    step.bytes_down = static_cast<int64_t>(down.size());
    step.messages_between += nodes_ - 1;
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
    if (decision.order.size() != submitted_) std::abort();
  }

  int nodes_, each_;
  OpTable ops_;
  ProcessSets sets_;
  Coordinator coordinator_;
  std::vector<Request> requests_;
  std::map<std::string, int> index_;
  std::vector<uint64_t> ids_;
  uint64_t heard_ = 0, number_ = 0;
  size_t submitted_ = 0;
};

// Messages of a few bytes between all ranks, each there as soon as it is sent.
class Net {
 public:
  class End final : public Transport {
   public:
    End(Net& net, int rank) : net_(net), rank_(rank) {}
    std::string_view name() const override { return "simulated"; }
    bool Reaches(int) const override { return true; }
    Status Post(Transfer& transfer) override { return net_.Post(rank_, transfer, this); }
    Result<bool> Progress() override { return false; }
    void Cancel(Transfer& transfer) override { net_.Cancel(transfer); }

   private:
    Net& net_;
    int rank_;
  };

 private:
  struct Wire {
    std::deque<std::vector<std::byte>> sent;
    std::deque<Transfer*> wanted;
  };
  Status Post(int rank, Transfer& transfer, Transport* by) {
    const bool sends = transfer.direction == Transfer::Direction::kSend;
    const int from = sends ? rank : transfer.peer, to = sends ? transfer.peer : rank;
    Wire& wire = wires_[{from, to, transfer.tag}];
    transfer.transport = by;
    transfer.done = sends;
    if (sends) {
      std::vector<std::byte>& message = wire.sent.emplace_back();
      for (const Span& span : transfer.spans)
        message.insert(message.end(), span.data, span.data + span.bytes);
    } else {
      wire.wanted.push_back(&transfer);
    }
    while (!wire.sent.empty() && !wire.wanted.empty()) {
      Transfer& receive = *wire.wanted.front();
      const std::vector<std::byte>& message = wire.sent.front();
      receive.bytes = static_cast<int64_t>(message.size());
      SpanCursor at;
      int64_t taken = 0;
      ForNext(receive.spans, at, receive.bytes, [&](std::byte* place, int64_t count) {
        std::memcpy(place, message.data() + taken, static_cast<size_t>(count));
        taken += count;
      });
      if (taken < receive.bytes) std::abort();  // no room for it
      receive.done = true;
      wire.sent.pop_front();
      wire.wanted.pop_front();
    }
    return Status::Ok();
  }
  void Cancel(Transfer& transfer) {
    for (auto& [key, wire] : wires_) std::erase(wire.wanted, &transfer);
  }
  std::map<std::tuple<int, int, Tag>, Wire> wires_;
};

// What the gates send for one bucket: all messages, and the most of one rank.
struct LockedStep {
  int64_t messages = 0, most = 0;
};

LockedStep RunLocked(int nodes, int each) {
  const int size = nodes * each;
  const Topology topology = Topology::Blocks(size, each);
  Net net;
  std::vector<std::unique_ptr<Transport>> ends;
  std::vector<std::unique_ptr<Counters>> counters;
  std::vector<Fabric> fabrics(static_cast<size_t>(size));
  std::vector<std::unique_ptr<StartGate>> gates;
  std::shared_ptr<SharedSegment> segment;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % each == 0)
      segment = SharedSegment::InProcess(SegmentShape::For(each, 1, 4096)).value();
    ends.push_back(std::make_unique<Net::End>(net, rank));
    counters.push_back(std::make_unique<Counters>());
    Fabric& fabric = fabrics[static_cast<size_t>(rank)];
    fabric = {rank, topology, std::vector<Transport*>(static_cast<size_t>(size), ends.back().get()),
              nullptr};
    gates.push_back(std::make_unique<StartGate>(fabric, segment, *counters.back()));
  }
  LockedStep step;
  for (uint64_t number = 1; number <= 2; ++number) {  // the first one sets out
    const Locked batch{1, 1, number};
    std::vector<int64_t> before;
    for (const auto& own : counters) before.push_back((*own)["schedule.messages"].value());
    for (const auto& gate : gates) gate->Start(batch);
    for (bool all = false; !all;) {
      bool moved = false;
      all = true;
      for (const auto& gate : gates) {
        const Result<bool> advanced = gate->Advance();
        if (!advanced.ok()) std::abort();
        moved = moved || advanced.value();
        all = all && gate->Passed(batch);
      }
      if (!moved && !all) std::abort();  // they would wait for ever
    }
    step = {};
    for (size_t rank = 0; rank < before.size(); ++rank) {
      const int64_t sent = (*counters[rank])["schedule.messages"].value() - before[rank];
      step.messages += sent;
      step.most = std::max(step.most, sent);
    }
  }
  for (const auto& gate : gates) gate->Stop();
  return step;
}

}  // namespace
}  // namespace horon

namespace {

// name: quoted, or a number.
void Print(const std::string& name, const horon::Step& step) {
  std::printf(
      "{\"step\": %s, \"messages_between\": %lld, \"messages_inside\": %lld, \"bytes_up\": %lld, "
      "\"bytes_down\": %lld, \"report\": %lld, \"coordinator_ms\": %.3f}\n",
      name.c_str(), static_cast<long long>(step.messages_between),
      static_cast<long long>(step.messages_inside), static_cast<long long>(step.bytes_up),
      static_cast<long long>(step.bytes_down), static_cast<long long>(step.report),
      step.coordinator_ms);
}

constexpr size_t kMissing = 32;  // one of so many

}  // namespace

int main(int count, char** values) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s NODES RANKS_PER_NODE TENSORS STEPS\n", values[0]);
    return 2;
  }
  horon::Job job(std::atoi(values[1]), std::atoi(values[2]), std::atoi(values[3]));
  for (int i = 0; i < std::atoi(values[4]); ++i) Print(std::to_string(i + 1), job.Run());
  Print("\"gaps\"", job.Run(kMissing));
  const auto locked = horon::RunLocked(std::atoi(values[1]), std::atoi(values[2]));
  horon::Step step;
  step.messages_between = locked.messages;
  step.bytes_up = step.bytes_down = locked.most * horon::StartGate::kBytes;
  Print("\"locked\"", step);
  return 0;
}
