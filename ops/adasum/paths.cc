#include "ops/adasum/paths.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace horon::adasum {
namespace {

Tree TreeOver(std::span<const int> members, int rank) {
  return Tree(RecycledVector<int64_t>(members.size(), 1), IndexOf(members, rank));
}

// Up by halving, first the fold.
Task Up(Share& share, Column column, Tree tree) {
  for (const Meeting& fold : tree.fold()) HORON_CO_TRY(co_await share.Merge(column, fold));
  for (const Meeting& meeting : tree.levels()) {
    HORON_CO_TRY(co_await share.Halve(column, meeting));
  }
  co_return Status::Ok();
}

// What was folded gets the result. `whole`: what both held before.
Task Unfold(Share& share, Column column, Tree tree, Ranges whole) {
  for (const Meeting& fold : tree.fold()) {
    const int peer = column.rank_of[static_cast<size_t>(fold.peer)];
    if (fold.first) {
      HORON_CO_TRY(co_await share.Give(peer));
    } else {
      HORON_CO_TRY(co_await share.Take(peer, whole));
    }
  }
  co_return Status::Ok();
}

// Afterwards the first member holds all, the others nothing.
Task GatherUpTree(Share& share, RecycledVector<int> members) {
  const Column column{members, nullptr};
  const Tree tree = TreeOver(members, share.rank());
  for (const Meeting& fold : tree.fold()) HORON_CO_TRY(co_await share.Merge(column, fold));
  for (const Meeting& meeting : tree.levels()) {
    HORON_CO_TRY(co_await share.Merge(column, meeting));
    if (!meeting.first) break;
  }
  co_return Status::Ok();
}

}  // namespace

Task ByHalving(Share& share, RecycledVector<int> members) {
  const Column column{members, nullptr};
  const Tree tree = TreeOver(members, share.rank());
  const Ranges whole = share.held();
  HORON_CO_TRY(co_await Up(share, column, tree));
  share.End();
  HORON_CO_TRY(co_await share.Unwind(0));
  co_return co_await Unfold(share, column, tree, whole);
}

Task ByLane(Share& share, RecycledVector<int> members) {
  const Column column{members, nullptr};
  const Tree tree = TreeOver(members, share.rank());
  const int levels = static_cast<int>(std::bit_width(members.size())) - 1;
  const bool folds = !std::has_single_bit(members.size());
  if (folds) {
    const Meeting* const fold = tree.fold().empty() ? nullptr : &tree.fold()[0];
    HORON_CO_TRY(co_await share.Swap(column, fold, {.fold = true}));
  }
  // Those who are folded see the way down to the first pairs, which a single level has not after
  // its halves have gone back.
  const bool backs = !folds || levels > 1;
  for (int level = 0; level < levels; ++level) {
    const bool top = level == levels - 1;
    const Meeting* const meeting =
        tree.folded() ? nullptr : &tree.levels()[static_cast<size_t>(level)];
    HORON_CO_TRY(co_await share.Swap(
        column, meeting, {.level = level, .top = top, .backs = top && backs}));
  }
  std::optional<int> folded;
  if (tree.folded()) folded = tree.fold()[0].peer;
  co_return co_await share.SwapBack(column, backs ? levels - 1 : levels, folded);
}

Task ByDoubling(Share& share, RecycledVector<int> members) {
  const Column column{members, nullptr};
  const Tree tree = TreeOver(members, share.rank());
  const Ranges whole = share.held();
  for (const Meeting& fold : tree.fold()) {
    HORON_CO_TRY(co_await share.MeetWhole(column, fold, /*fold=*/true));
  }
  for (const Meeting& meeting : tree.levels()) {
    HORON_CO_TRY(co_await share.MeetWhole(column, meeting, /*fold=*/false));
  }
  share.End();
  HORON_CO_TRY(co_await share.Unwind(0));
  co_return co_await Unfold(share, column, tree, whole);
}

Task ByTree(Share& share, RecycledVector<int> members) {
  HORON_CO_TRY(co_await GatherUpTree(share, members));
  share.End();
  HORON_CO_TRY(co_await share.Unwind(0));
  Communicator all = share.comm().Sub(members, 1);
  const RecycledVector<Span> outputs = share.OutputSpans();
  co_return co_await Broadcast(all, outputs, 0);
}

// --- several nodes -------------------------------------------------------------------------------

namespace {

// Who is where: nodes, mine, and how many of a node's ranks own slices between the nodes.
struct Layout {
  Layout(const Communicator& comm, LocalOp local, bool tree)
      : nodes(comm.nodes()),
        node(comm.node_of(comm.rank())),
        mine(comm.own_node().begin(), comm.own_node().end()),
        local_index(IndexOf(mine, comm.rank())) {
    size_t smallest = mine.size();
    for (const auto& members : nodes) smallest = std::min(smallest, members.size());
    owners = static_cast<int>(local == LocalOp::kAdasum ? std::bit_floor(smallest) : smallest);
    if (tree) owners = 1;
    for (const auto& members : nodes) {
      leaves.push_back(local == LocalOp::kSum ? 1 : static_cast<int64_t>(members.size()));
    }
  }
  // Ranks with my local index, by node.
  RecycledVector<int> Across() const {
    RecycledVector<int> members;
    for (const auto& of_node : nodes) members.push_back(of_node[static_cast<size_t>(local_index)]);
    return members;
  }

  const std::vector<std::vector<int>>& nodes;
  int node;
  RecycledVector<int> mine;  // my node's ranks
  int local_index;
  int owners;
  RecycledVector<int64_t> leaves;
};

// Between nodes, on the slice that this owner holds.
Task Across(Share& share, const Layout& layout) {
  Communicator row = share.comm().Sub(
      std::span(layout.mine).first(static_cast<size_t>(layout.owners)), 1);
  const Column column{layout.Across(), &row};
  const Tree tree(layout.leaves, layout.node);
  const Ranges slice = share.held();
  const size_t depth = share.depth();
  HORON_CO_TRY(co_await Up(share, column, tree));
  share.End();
  HORON_CO_TRY(co_await share.Unwind(depth));
  co_return co_await Unfold(share, column, tree, slice);
}

// Inside the node by halving, until as many ranks hold slices as take part between nodes.
Task HalvingOverNodes(Share& share, const Layout& layout) {
  const Column column{layout.mine, nullptr};
  const Tree tree = TreeOver(layout.mine, share.rank());
  const Ranges whole = share.held();
  HORON_CO_TRY(co_await Up(share, column, tree));
  const auto kept = static_cast<size_t>(std::bit_width(static_cast<unsigned>(layout.owners)) - 1);
  HORON_CO_TRY(co_await share.Unwind(kept));
  // Ranks with equal low bits of their number hold the same slice: the first of them goes on.
  const bool owner = layout.local_index < layout.owners;
  if (owner) HORON_CO_TRY(co_await Across(share, layout));
  const int holders = static_cast<int>(std::bit_floor(layout.mine.size()));
  for (int next = layout.owners; next < holders; next *= 2) {
    if (layout.local_index < next) {
      HORON_CO_TRY(
          co_await share.Give(layout.mine[static_cast<size_t>(layout.local_index + next)]));
    } else if (layout.local_index < 2 * next) {
      const int from = layout.mine[static_cast<size_t>(layout.local_index - next)];
      HORON_CO_TRY(co_await share.Take(from, share.held()));
    }
  }
  HORON_CO_TRY(co_await share.Unwind(0));
  co_return co_await Unfold(share, column, tree, whole);
}

Task TreeOverNodes(Share& share, const Layout& layout) {
  HORON_CO_TRY(co_await GatherUpTree(share, layout.mine));
  if (layout.local_index == 0) HORON_CO_TRY(co_await Across(share, layout));
  Communicator node = share.comm().Sub(layout.mine, 2);
  const RecycledVector<Span> outputs = share.OutputSpans();
  co_return co_await Broadcast(node, outputs, 0);
}

Task SlicesOverNodes(Share& share, const Layout& layout, bool average) {
  const double scale = average ? 1.0 / static_cast<double>(layout.mine.size()) : 1.0;
  HORON_CO_TRY(co_await share.ReduceSlices(layout.mine, layout.owners, scale));
  if (layout.local_index < layout.owners) HORON_CO_TRY(co_await Across(share, layout));
  co_return co_await share.GatherSlices(layout.mine, layout.owners);
}

}  // namespace

Task OverNodes(Share& share, LocalOp local, bool tree) {
  const Layout layout(share.comm(), local, tree);
  if (local != LocalOp::kAdasum) {
    co_return co_await SlicesOverNodes(share, layout, local == LocalOp::kAverage);
  }
  if (tree) co_return co_await TreeOverNodes(share, layout);
  co_return co_await HalvingOverNodes(share, layout);
}

}  // namespace horon::adasum
