#include "test/support/world.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "runtime/c_process_sets.h"
#include "runtime/transport/shm.h"

namespace horon::test {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "world: %s\n", result.status().message().c_str());
    std::abort();
  }
  return std::move(result).value();
}

// The rings between nodes wake the same doorbells as the node's own: ShmTransport rings the bell in
// the segment it was given, so a rank that sleeps on its node's bell would not hear the network.
// The network transport therefore says that it must be looked at, as MPI does.
class Network final : public Transport {
 public:
  Network(std::shared_ptr<SharedSegment> segment, std::vector<int> members, int rank, bool outlives)
      : rings_(std::move(segment), std::move(members), rank, "inproc"), outlives_(outlives) {}
  std::string_view name() const override { return rings_.name(); }
  bool Reaches(int peer) const override { return rings_.Reaches(peer); }
  Status Post(Transfer& transfer) override { return rings_.Post(transfer); }
  Result<bool> Progress() override { return rings_.Progress(); }
  int Sender(Tag tag) override { return rings_.Sender(tag); }
  void Cancel(Transfer& transfer) override { rings_.Cancel(transfer); }
  void Flush() override { rings_.Flush(); }
  bool OutlivesRanks() const override { return outlives_; }
  void Leave() override { outlives_ = false; }
  std::chrono::microseconds poll_interval() const override { return std::chrono::microseconds{50}; }

 private:
  ShmTransport rings_;
  bool outlives_;
};

}  // namespace

World::World(int size, WorldOptions options)
    : options_(std::move(options)),
      topology_(options_.local_size > 0 ? Topology::Blocks(size, options_.local_size)
                                        : Topology::OneNode(size)) {
  Config config;
  config.shm_chunk_bytes = 16 << 10;  // many chunks without big tensors
  options_.configure(config);
  for (int node = 0; node < topology_.nodes(); ++node) {
    const int members = static_cast<int>(topology_.members(node).size());
    SegmentShape shape = SegmentShape::For(members, config.shm_ring_bytes, config.shm_chunk_bytes);
    if (!options_.lanes) shape.lanes = 0;
    nodes_.push_back(Must(SharedSegment::InProcess(shape)));
  }
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  if (topology_.nodes() > 1)
    network_ = Must(SharedSegment::InProcess(SegmentShape::For(size, 0, 4096)));
  for (int r = 0; r < size; ++r) {
    RuntimeParts parts;
    parts.config = config;
    options_.configure_rank(r, parts.config);
    parts.rank = r;
    parts.topology = topology_;
    parts.counters = std::make_shared<Counters>();
    parts.gpus = options_.gpus(r);
    parts.losses = options_.losses;
    parts.on_fault = [this, r](const std::string& what) { options_.on_fault(r, what); };
    if (r == 0) parts.recorder = options_.recorder;
    parts.segment = nodes_[static_cast<size_t>(topology_.node_of(r))];
    parts.transports.push_back(std::make_unique<SelfTransport>(r));
    parts.transports.push_back(options_.wrap(
        r, std::make_unique<ShmTransport>(parts.segment, topology_.members(topology_.node_of(r)),
                                          topology_.local_rank(r), "inproc", parts.config.cma)));
    if (network_)
      parts.transports.push_back(
          options_.wrap(r, std::make_unique<Network>(network_, everyone, r,
                                                     options_.network_outlives)));
    for (int peer = 0; peer < size; ++peer) {
      Transport* way = peer == r ? parts.transports[0].get()
                       : topology_.node_of(peer) == topology_.node_of(r)
                           ? parts.transports[1].get()
                           : parts.transports[2].get();
      parts.route.push_back(way);
    }
    parts.control = parts.route;
    runtimes_.push_back(std::make_unique<Runtime>(std::move(parts)));
  }
}

World::~World() {
  std::vector<std::thread> leaving;  // together, as processes do
  for (auto& runtime : runtimes_) leaving.emplace_back([&runtime] { runtime->Shutdown(); });
  for (std::thread& thread : leaving) thread.join();
}

void World::MarkDead(int rank, const std::string& sentence) {
  nodes_[static_cast<size_t>(topology_.node_of(rank))]->MarkDead(topology_.local_rank(rank),
                                                                 sentence);
}

void World::Run(const std::function<void(Rank&)>& body) {
  std::mutex mutex;
  std::condition_variable finished;
  std::vector<bool> done(runtimes_.size());
  size_t left = runtimes_.size();
  std::vector<std::thread> threads;
  for (size_t r = 0; r < runtimes_.size(); ++r) {
    threads.emplace_back([&, r] {
      Rank me(*runtimes_[r]);
      body(me);
      std::lock_guard lock(mutex);
      done[r] = true;
      if (--left == 0) finished.notify_one();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!finished.wait_for(lock, options_.limit, [&] { return left == 0; })) {
      for (size_t r = 0; r < done.size(); ++r) {
        if (!done[r])
          std::fprintf(stderr, "world: rank %zu is still running after %lld s\n", r,
                       static_cast<long long>(options_.limit.count()));
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

Result<std::shared_ptr<Work>> Rank::Submit(Request request, const void* input, void* output,
                                           bool wake) {
  auto work = std::make_shared<Work>(1);
  HORON_ASSIGN(SharedRegistration what, runtime_->registry().Of(std::move(request)));
  Submission one{std::move(what), static_cast<const std::byte*>(input),
                 static_cast<std::byte*>(output)};
  HORON_TRY(runtime_->Submit({&one, 1}, work, wake));
  return work;
}

Result<std::shared_ptr<Work>> Rank::SubmitGroup(std::vector<Request> requests,
                                                std::vector<const void*> inputs,
                                                std::vector<void*> outputs,
                                                const std::string& group) {
  auto work = std::make_shared<Work>(static_cast<int>(requests.size()));
  std::vector<Submission> all;
  std::string names;
  for (const Request& r : requests) names += r.name + '\n';
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].group = group;
    requests[i].group_size = static_cast<int32_t>(requests.size());
    requests[i].group_hash = TensorId(requests[i].process_set, names);
    HORON_ASSIGN(SharedRegistration what, runtime_->registry().Of(std::move(requests[i])));
    all.push_back({std::move(what), static_cast<const std::byte*>(inputs[i]),
                   static_cast<std::byte*>(outputs[i])});
  }
  HORON_TRY(runtime_->Submit(all, work, true));
  return work;
}

Status Rank::Wait(Work& work) {
  runtime_->Wait(work, std::chrono::nanoseconds::max());
  return work.status();
}

Status Rank::Run(Request request, const void* input, void* output, std::shared_ptr<Work>* out) {
  HORON_ASSIGN(std::shared_ptr<Work> work, Submit(std::move(request), input, output, false));
  const Status status = Wait(*work);
  if (out != nullptr) *out = std::move(work);
  return status;
}

Status Rank::Reduce(const std::string& name, const std::string& op, std::vector<float>& values) {
  Request request;
  request.name = name;
  request.op = op;
  request.shape = {static_cast<int64_t>(values.size())};
  return Run(std::move(request), values.data(), values.data());
}

Result<int> Rank::ChangeSets(const std::string& op, std::vector<int64_t> numbers) {
  Request request;
  request.op = op;
  request.name = "change of process sets";
  request.dtype = DataType::kUInt8;
  request.splits = std::move(numbers);
  std::shared_ptr<Work> work;
  HORON_TRY(Run(std::move(request), nullptr, nullptr, &work));
  return static_cast<int>(work->outputs()[0].received_splits[0]);
}

Result<int> Rank::AddProcessSet(const std::vector<int>& ranks) {
  return ChangeSets("process_set.add", {ranks.begin(), ranks.end()});
}

Result<std::shared_ptr<Work>> Rank::StartJoin() { return SubmitJoin(*runtime_); }

Result<int> Rank::Join() {
  HORON_ASSIGN(std::shared_ptr<Work> work, StartJoin());
  HORON_TRY(Wait(*work));
  return static_cast<int>(work->outputs()[0].received_splits[0]);
}

Status Rank::RemoveProcessSet(int id) {
  HORON_TRY(ChangeSets("process_set.remove", {id}).status());
  return Status::Ok();
}

}  // namespace horon::test
