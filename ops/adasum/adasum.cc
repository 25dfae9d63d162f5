// "adasum[:algo=auto|halving|doubling|tree|ring][,local=adasum|average|sum][,zero=sum|mean]
// [,chunk=B][,small=B][,rings=0.1.2/0.2.1]":
// out = postscale * Adasum over the ranks of (prescale * in), tensor by tensor. Floating dtypes.
//
// Where two ranks' gradients agree they are averaged, where they are orthogonal they are added, and
// so up a binary tree over the ranks (pair.h, tree.h). The coefficients belong to each tensor, also
// when many share a bucket. paths.h says what travels. algo=ring is an approximation (ring.cc),
// along the rings given, each an order of the set's ranks by their places in it. Source: Maleki et
// al., Scaling Distributed Training with Adaptive Summation, MLSys 2021.
#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <numeric>
#include <utility>

#include "ops/adasum/gpu_tree.h"
#include "ops/adasum/paths.h"
#include "runtime/base/log.h"

namespace horon {
namespace {

using adasum::LocalOp;
using adasum::Share;
using adasum::ZeroPolicy;

enum class Algorithm { kAuto, kHalving, kDoubling, kTree, kRing, kLane };
constexpr std::array<const char*, 6> kNames{"chosen by the bucket's size",
                                            "recursive halving",
                                            "recursive doubling",
                                            "binary tree",
                                            "rings",
                                            "halving through shared memory"};
// Of what goes through the nodes first.
const char* NameOverNodes(LocalOp local, bool tree, bool one_node) {
  if (local == LocalOp::kAverage)
    return one_node ? "average" : "average inside nodes, then halving";
  if (local == LocalOp::kSum) return one_node ? "sum" : "sum inside nodes, then halving";
  return tree ? "tree inside nodes, then halving" : "halving inside nodes, then between them";
}

using Rings = RecycledVector<RecycledVector<int>>;

struct Parameters {
  Algorithm algorithm = Algorithm::kAuto;
  LocalOp local = LocalOp::kAdasum;
  ZeroPolicy zeros = ZeroPolicy::kSum;
  int64_t chunk_bytes = 0;
  int64_t small_bytes = 0;  // up to here doubling's fewer messages win over halving's fewer bytes
  Rings rings;              // empty: one, in the order of ranks
};

// Whether each of them is an order of 0 .. size-1.
bool AreOrders(const Rings& rings, int size) {
  return std::all_of(rings.begin(), rings.end(), [&](RecycledVector<int> ring) {
    std::sort(ring.begin(), ring.end());
    for (int i = 0; i < static_cast<int>(ring.size()); ++i)
      if (ring[static_cast<size_t>(i)] != i) return false;
    return static_cast<int>(ring.size()) == size;
  });
}

// Whether the tree over all ranks goes through every node's ranks before it leaves the node: then
// Adasum inside the nodes and between them is Adasum over the ranks.
bool Flat(const Communicator& comm) {
  const auto& nodes = comm.nodes();
  if (comm.one_node() || comm.all_apart()) return true;
  int expected = 0;
  for (const auto& members : nodes) {
    if (members.size() != nodes[0].size() || !std::has_single_bit(members.size())) return false;
    for (const int member : members) {
      if (member != expected++) return false;
    }
  }
  return true;
}

class Adasum final : public Op {
 public:
  explicit Adasum(const Parameters& parameters) : parameters_(parameters) {}

  Status CheckAlone(const Request& request) const override { return CheckFloating(request); }

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckFloatingAlike(by_rank, ranks));
    if (!AreOrders(parameters_.rings, static_cast<int>(ranks.size())))
      return Status::InvalidArgument(
          "each of adasum's rings must have each of the set's " + std::to_string(ranks.size()) +
          " ranks once, by its place in the set: 0 to " + std::to_string(ranks.size() - 1));
    return Agreement{};
  }

  bool fusable() const override { return true; }
  bool fills_output() const override { return true; }
  // A bucket is gone through several times: on the host, where rings always run, small ones stay
  // in the caches meanwhile, and take little scratch, 1 MiB by default. On a GPU one is as many
  // launches and exchanges as any other: as large as fits, twice and with its dots and weights,
  // into a block of the threshold, 56 MiB.
  int64_t MostFused(int64_t threshold, DeviceKind where) const override {
    const bool host = where == DeviceKind::kHost || parameters_.algorithm == Algorithm::kRing;
    return host ? threshold / 128 : threshold / 16 * 7;
  }

  // Prescaled values are written to the outputs at once.
  bool lockable(const Request& request) const override { return request.prescale == 1.0; }

  bool TakesLane(Stage& stage) const override {
    return !ByNodes(stage.comm()) && Choose(stage) == Algorithm::kLane;
  }

  Task Run(Stage& stage) override {
    Share share(stage, parameters_.chunk_bytes, parameters_.zeros);
    HORON_CO_TRY(share.Begin());
    Communicator& comm = stage.comm();
    RecycledVector<int> all(static_cast<size_t>(comm.size()));
    std::iota(all.begin(), all.end(), 0);
    if (parameters_.algorithm == Algorithm::kRing) {
      stage.SetAlgorithm(kNames[static_cast<size_t>(Algorithm::kRing)]);
      const Rings rings = parameters_.rings.empty() ? Rings{all} : RingsOf(stage);
      co_return co_await share.GoRound(rings);
    }
    if (ByNodes(comm)) {
      const bool tree = parameters_.algorithm == Algorithm::kTree;
      stage.SetAlgorithm(NameOverNodes(parameters_.local, tree, comm.one_node()));
      if (comm.one_node()) WarnOfNoEffect(comm);
      co_return co_await OverNodes(share, parameters_.local, tree);
    }
    const Algorithm algorithm = Choose(stage);
    stage.SetAlgorithm(kNames[static_cast<size_t>(algorithm)]);
    switch (algorithm) {
      case Algorithm::kLane:
        co_return co_await ByLane(share, std::move(all));
      case Algorithm::kDoubling:
        co_return co_await ByDoubling(share, std::move(all));
      case Algorithm::kTree:
        co_return co_await ByTree(share, std::move(all));
      default:
        co_return co_await ByHalving(share, std::move(all));
    }
  }

  // Rings are the host's. A group of several nodes' ranks has one tree over all of them.
  bool on_gpus(Stage& stage, bool everyone) const override {
    if (parameters_.algorithm == Algorithm::kRing) return false;
    return !everyone || stage.comm().one_node() || !ByNodes(stage.comm());
  }

  Task RunOnGpus(GpuStage& stage) override {
    const Communicator& comm = stage.comm();
    const LocalOp local = comm.all_apart() ? LocalOp::kAdasum : parameters_.local;
    stage.SetAlgorithm(local == LocalOp::kAdasum ? "recursive halving on GPUs"
                                                 : NameOverNodes(local, false, comm.one_node()));
    if (local != LocalOp::kAdasum && comm.one_node()) WarnOfNoEffect(comm);
    adasum::GpuTree tree(stage, local, parameters_.zeros, local == LocalOp::kAdasum && Flat(comm));
    Task run = tree.Run();
    co_return co_await run;
  }

 private:
  void WarnOfNoEffect(const Communicator& comm) {
    if (std::exchange(warned_, true) || comm.rank() != 0) return;
    const std::string local = parameters_.local == LocalOp::kSum ? "sum" : "average";
    Log(LogLevel::kWarn, "adasum",
        "local=" + local + " on a single node is a plain " + local +
            ": Adasum acts between nodes only, and there are no others");
  }

  // Whether what happens inside the nodes is another thing than what happens between them.
  bool ByNodes(const Communicator& comm) const {
    const bool several = comm.nodes().size() < static_cast<size_t>(comm.size());
    return (parameters_.local != LocalOp::kAdasum && several) || !Flat(comm);
  }

  // Those who have joined are left out.
  Rings RingsOf(Stage& stage) const {
    std::vector<int> rank_at(static_cast<size_t>(stage.set_size()), -1);
    for (int rank = 0; rank < stage.comm().size(); ++rank)
      rank_at[static_cast<size_t>(stage.PlaceOf(rank))] = rank;
    Rings rings = parameters_.rings;
    for (RecycledVector<int>& ring : rings) {
      for (int& place : ring) place = rank_at[static_cast<size_t>(place)];
      std::erase(ring, -1);
    }
    return rings;
  }

  // All of them give the same bits, so it may go by the bucket.
  Algorithm Choose(Stage& stage) const {
    if (parameters_.algorithm != Algorithm::kAuto) return parameters_.algorithm;
    int64_t count = 0;
    for (const Segment& segment : stage.segments()) count += segment.count;
    const int64_t element = SizeOf(stage.dtype());
    if (count * element <= parameters_.small_bytes) return Algorithm::kDoubling;
    const Lane* const lane = stage.comm().lane();
    return lane != nullptr && lane->CanSwap(element) ? Algorithm::kLane : Algorithm::kHalving;
  }

  Parameters parameters_;
  bool warned_ = false;
};

// "0.1.2/2.1.0"
Result<Rings> ReadRings(const OpArguments& arguments, const std::string& text) {
  Rings rings(1);
  for (size_t at = 0; at < text.size();) {
    size_t digits = 0;
    while (at + digits < text.size() && std::isdigit(static_cast<unsigned char>(text[at + digits])))
      ++digits;
    const size_t after = at + digits;
    const bool ends = after == text.size();
    if (digits == 0 || digits > 6 || (!ends && text[after] != '.' && text[after] != '/'))
      return arguments.Wrong("rings are places with dots between them, and / between two rings");
    rings.back().push_back(std::stoi(text.substr(at, digits)));
    if (!ends && text[after] == '/') rings.emplace_back();
    at = after + 1;
  }
  if (rings.back().empty()) return arguments.Wrong("a ring has no places");
  return rings;
}

Result<std::unique_ptr<Op>> MakeAdasum(OpArguments& arguments) {
  Parameters parameters;
  HORON_ASSIGN(const std::string algorithm,
               arguments.Choice("algo", {"auto", "halving", "doubling", "tree", "ring"}));
  HORON_ASSIGN(const std::string local, arguments.Choice("local", {"adasum", "average", "sum"}));
  HORON_ASSIGN(const std::string zeros, arguments.Choice("zero", {"sum", "mean"}));
  HORON_ASSIGN(parameters.chunk_bytes, arguments.Integer("chunk", 1 << 20));
  if (parameters.chunk_bytes < 0) return arguments.Wrong("chunk must be at least 0");
  if (parameters.chunk_bytes == 0) parameters.chunk_bytes = INT64_MAX;
  HORON_ASSIGN(parameters.small_bytes, arguments.Integer("small", 64 << 10));
  if (parameters.small_bytes < 0) return arguments.Wrong("small must be at least 0");
  if (algorithm == "halving") parameters.algorithm = Algorithm::kHalving;
  if (algorithm == "doubling") parameters.algorithm = Algorithm::kDoubling;
  if (algorithm == "tree") parameters.algorithm = Algorithm::kTree;
  if (algorithm == "ring") parameters.algorithm = Algorithm::kRing;
  // Of the whole process (HORON_ADASUM_KERNEL), here so that ranks that differ in it hear of it.
  HORON_TRY(arguments.Choice("kernel", {"fused", "cublas"}).status());
  const std::optional<std::string> rings = arguments.Text("rings");
  if (rings) {
    HORON_ASSIGN(parameters.rings, ReadRings(arguments, *rings));
  }
  if (rings && algorithm != "ring") return arguments.Wrong("rings go with algo=ring");
  if (algorithm == "ring" && local != "adasum")
    return arguments.Wrong("a ring takes all ranks alike; local is for the other algorithms");
  if (local == "average") parameters.local = LocalOp::kAverage;
  if (local == "sum") parameters.local = LocalOp::kSum;
  if (zeros == "mean") parameters.zeros = ZeroPolicy::kMean;
  return std::unique_ptr<Op>(std::make_unique<Adasum>(parameters));
}

const OpRegistrar kAdasum{"adasum", MakeAdasum};

}  // namespace
}  // namespace horon
