// Adasum on GPUs: who meets whom, and who holds pieces of what they meet about.
#include <algorithm>
#include <bit>

#include "ops/adasum/gpu_tree.h"

namespace horon::adasum {
namespace {

int Levels(size_t count) { return static_cast<int>(std::bit_width(count)) - 1; }

std::vector<std::vector<int>> NodesOf(const GpuStage& stage, const Communicator& comm) {
  if (static_cast<int>(stage.near().size()) < comm.size()) return comm.nodes();
  return {{stage.near().begin(), stage.near().end()}};
}

}  // namespace

GpuTree::GpuTree(GpuStage& stage, LocalOp local, ZeroPolicy zeros, bool over_ranks)
    : stage_(stage),
      comm_(stage.comm()),
      local_op_(local),
      zeros_(zeros),
      nodes_(NodesOf(stage, comm_)),
      pieces_(stage.segments(), SizeOf(stage.dtype()), 1) {
  while (std::find(nodes_[static_cast<size_t>(node_)].begin(),
                   nodes_[static_cast<size_t>(node_)].end(),
                   comm_.rank()) == nodes_[static_cast<size_t>(node_)].end())
    ++node_;
  const std::vector<int>& mine = nodes_[static_cast<size_t>(node_)];
  local_ = static_cast<int>(std::find(mine.begin(), mine.end(), comm_.rank()) - mine.begin());
  width_ = static_cast<int>(mine.size());
  const bool sums = local_op_ != LocalOp::kAdasum;
  owners_ = sums ? width_ : static_cast<int>(std::bit_floor(mine.size()));
  inside_levels_ = sums ? 0 : Levels(mine.size());
  between_levels_ = Levels(nodes_.size());
  const bool whole = std::has_single_bit(nodes_.size());
  if (over_ranks && !whole && width_ > 1) {
    PlanOverRanks();
  } else {
    PlanOverNodes();
  }
  pieces_ = GpuBlock(stage.segments(), SizeOf(stage.dtype()), int64_t{owners_} << between_levels_);
}

GpuTree::Step GpuTree::StepOf(const Meeting& meeting, const std::vector<int>& ranks) const {
  return {ranks[static_cast<size_t>(meeting.peer)], meeting};
}

// Ranks of my place in their node, by node.
std::vector<int> GpuTree::Column() const {
  std::vector<int> column;
  for (const auto& node : nodes_) column.push_back(node[static_cast<size_t>(local_)]);
  return column;
}

// The ranks beyond the largest power of two fold into the first ones, whole nodes of them; then the
// levels of the tree are inside the nodes first.
void GpuTree::PlanOverRanks() {
  const Tree tree(std::vector<int64_t>(static_cast<size_t>(comm_.size()), 1), comm_.rank());
  std::vector<int> all;
  for (int rank = 0; rank < comm_.size(); ++rank) all.push_back(rank);
  first_fold_.resize(1);
  for (const Meeting& fold : tree.fold()) first_fold_[0] = StepOf(fold, all);
  inside_.resize(static_cast<size_t>(inside_levels_));
  between_.resize(static_cast<size_t>(between_levels_));
  for (const Meeting& meeting : tree.levels()) {
    const bool near = meeting.level < inside_levels_;
    const int level = near ? meeting.level : meeting.level - inside_levels_;
    (near ? inside_ : between_)[static_cast<size_t>(level)] = StepOf(meeting, all);
  }
}

void GpuTree::PlanOverNodes() {
  if (local_op_ == LocalOp::kAdasum) PlanInside();
  const int64_t leaves = local_op_ == LocalOp::kSum ? 1 : width_;
  PlanBetween(std::vector<int64_t>(nodes_.size(), leaves));
}

void GpuTree::PlanInside() {
  const std::vector<int>& mine = nodes_[static_cast<size_t>(node_)];
  const Tree tree(std::vector<int64_t>(mine.size(), 1), local_);
  if (owners_ < width_) inside_fold_.resize(1);
  for (const Meeting& fold : tree.fold()) inside_fold_[0] = StepOf(fold, mine);
  inside_.resize(static_cast<size_t>(inside_levels_));
  for (const Meeting& meeting : tree.levels())
    inside_[static_cast<size_t>(meeting.level)] = StepOf(meeting, mine);
}

void GpuTree::PlanBetween(const std::vector<int64_t>& leaves) {
  if (!std::has_single_bit(nodes_.size())) between_fold_.resize(1);
  between_.resize(static_cast<size_t>(between_levels_));
  if (local_ >= owners_) return;
  const Tree tree(leaves, node_);
  for (const Meeting& fold : tree.fold()) between_fold_[0] = StepOf(fold, Column());
  for (const Meeting& meeting : tree.levels())
    between_[static_cast<size_t>(meeting.level)] = StepOf(meeting, Column());
}

GpuTree::Holders GpuTree::Alone() const { return {{comm_.rank()}, 0, {}, 0}; }

// 2^(level+1) neighbours. Who takes no part needs the number of them alone.
GpuTree::Holders GpuTree::Inside(int level) const {
  const std::vector<int>& mine = nodes_[static_cast<size_t>(node_)];
  const int size = 2 << level, first = local_ < owners_ ? local_ / size * size : 0;
  Holders holders;
  holders.near.assign(mine.begin() + first, mine.begin() + first + size);
  holders.me = local_ - first;
  return holders;
}

// The owners of 2^levels nodes.
GpuTree::Holders GpuTree::Between(int levels) const {
  const std::vector<int>& mine = nodes_[static_cast<size_t>(node_)];
  const std::vector<int> column = Column();
  Holders holders;
  holders.near.assign(mine.begin(), mine.begin() + owners_);
  holders.me = local_;
  for (int bit = 0; bit < levels; ++bit)
    holders.across.push_back(static_cast<size_t>(node_ ^ (1 << bit)) < column.size()
                                 ? column[static_cast<size_t>(node_ ^ (1 << bit))]
                                 : -1);
  holders.block = node_ & ((1 << levels) - 1);
  return holders;
}

}  // namespace horon::adasum
