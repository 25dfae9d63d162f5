// The collectives that reduce. Whoever reduces adds all ranks' values in one pass, in rank order.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/fault.h"
#include "runtime/transport/collectives.h"

namespace horon {
namespace {

// Some chunks are in flight, so that one is reduced while the next ones travel, and nobody waits
// for each of them in turn: between nodes that costs more than the bytes.
constexpr int64_t kChunkBytes = 128 << 10;
constexpr size_t kChunksInFlight = 4;
// Up to here a second step costs more than the bytes that it saves.
constexpr int64_t kOneStepBytes = 4 << 10;

// A send only reads; Span has one type for both directions.
Span Outgoing(const std::byte* data, int64_t bytes) {
  return {const_cast<std::byte*>(data), bytes};
}

// Chunk k of every part: mine comes in from all others, theirs go out.
class DirectExchange {
 public:
  DirectExchange(Communicator& comm, const std::byte* block, std::span<const Part> parts,
                 std::byte* out, Reduction reduction)
      : comm_(comm),
        block_(block),
        parts_(parts),
        out_(out),
        reduction_(reduction),
        element_(SizeOf(reduction.dtype)),
        chunk_(kChunkBytes / element_) {
    const auto size = static_cast<size_t>(comm.size());
    for (Slot& slot : slots_) {
      slot.receives = RecycledVector<Transfer>(size);
      slot.sends = RecycledVector<Transfer>(size);
    }
    for (const Part& part : parts) steps_ = std::max(steps_, (part.count + chunk_ - 1) / chunk_);
  }

  int64_t steps() const { return steps_; }
  RecycledVector<Transfer>& receives(int64_t step) { return slot(step).receives; }
  RecycledVector<Transfer>& sends(int64_t step) { return slot(step).sends; }

  Status Begin(int64_t step) {
    const int me = comm_.rank(), size = comm_.size();
    const Part mine = Chunk(me, step);
    if (mine.count > 0 && size > 1) HORON_TRY(Reserve(step, mine.count));
    for (int hop = 1; hop < size; ++hop) {
      const int to = (me + hop) % size, from = (me - hop + size) % size;
      if (mine.count > 0) {
        Transfer& receive = receives(step)[static_cast<size_t>(from)];
        HORON_TRY(comm_.Receive(receive, from, Span{Input(step, from), mine.count * element_}));
      }
      const Part theirs = Chunk(to, step);
      if (theirs.count > 0) {
        Transfer& send = sends(step)[static_cast<size_t>(to)];
        const std::byte* const data = block_ + theirs.begin * element_;
        HORON_TRY(comm_.Send(send, to, Outgoing(data, theirs.count * element_)));
      }
    }
    return Status::Ok();
  }

  // Once the step's receives have finished.
  void Reduce(int64_t step) {
    FaultPoint(FaultPhase::kReduce);
    const Part mine = Chunk(comm_.rank(), step);
    if (mine.count == 0) return;
    RecycledVector<const std::byte*> inputs;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      inputs.push_back(rank == comm_.rank() ? block_ + mine.begin * element_ : Input(step, rank));
    }
    ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs,
               out_ + step * chunk_ * element_, mine.count);
  }

 private:
  struct Slot {
    Buffer inputs;  // declared first: the transfers are cancelled before it goes
    int64_t stride = 0;
    RecycledVector<Transfer> receives, sends;  // by peer
  };
  Slot& slot(int64_t step) { return slots_[static_cast<size_t>(step) % kChunksInFlight]; }

  // The first step a slot serves has the largest chunk.
  Status Reserve(int64_t step, int64_t count) {
    Slot& now = slot(step);
    if (now.stride > 0) return Status::Ok();
    const int64_t stride = (count * element_ + 63) / 64 * 64;
    HORON_ASSIGN(now.inputs, comm_.pool().Take(stride * (comm_.size() - 1)));
    now.stride = stride;
    return Status::Ok();
  }
  std::byte* Input(int64_t step, int rank) {
    const int before_mine = rank < comm_.rank() ? rank : rank - 1;
    return slot(step).inputs.data() + before_mine * slot(step).stride;
  }
  Part Chunk(int rank, int64_t step) const {
    const Part& part = parts_[static_cast<size_t>(rank)];
    const int64_t begin = std::min(step * chunk_, part.count);
    return {part.begin + begin, std::min(chunk_, part.count - begin)};
  }

  Communicator& comm_;
  const std::byte* block_;
  std::span<const Part> parts_;
  std::byte* out_;
  Reduction reduction_;
  int64_t element_, chunk_;  // bytes of an element, elements of a chunk
  int64_t steps_ = 0;
  Slot slots_[kChunksInFlight];
};

// Everybody sends everything to everybody and reduces it all: one step.
Task OneStepAllreduce(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
                      Reduction reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  auto scratch = comm.pool().Take(bytes * comm.size());
  if (!scratch.ok()) co_return scratch.status();
  RecycledVector<const std::byte*> inputs;
  RecycledVector<Transfer> transfers(2 * static_cast<size_t>(comm.size()));
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::byte* const theirs = scratch.value().data() + rank * bytes;
    inputs.push_back(rank == comm.rank() ? input : theirs);
    if (rank == comm.rank()) continue;
    auto* pair = &transfers[2 * static_cast<size_t>(rank)];
    HORON_CO_TRY(comm.Receive(pair[0], rank, Span{theirs, bytes}));
    HORON_CO_TRY(comm.Send(pair[1], rank, Outgoing(input, bytes)));
  }
  for (Transfer& transfer : transfers) HORON_CO_TRY(co_await Finished(transfer));
  ReduceInto(reduction.kind, reduction.dtype, reduction.scale, inputs, output, count);
  co_return Status::Ok();
}

Task FlatAllreduce(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
                   Reduction reduction) {
  if (count * SizeOf(reduction.dtype) <= kOneStepBytes) {
    co_return co_await OneStepAllreduce(comm, input, output, count, reduction);
  }
  const auto parts = NearlyEqualParts(count, comm.size(), comm.size());
  const auto parts_bytes = InBytes(parts, reduction.dtype);
  std::byte* const mine = output + parts_bytes[static_cast<size_t>(comm.rank())].begin;
  HORON_CO_TRY(co_await ReduceScatter(comm, input, parts, mine, reduction));
  co_return co_await Allgather(comm, output, parts_bytes);
}

BlockReduction WholeBlock(const Communicator& comm, const std::byte* input, std::byte* output,
                          int64_t count, const Reduction& reduction) {
  BlockReduction whole{input, output, count, reduction.dtype, reduction.kind, comm.ranks()};
  std::sort(whole.ranks.begin(), whole.ranks.end());
  return whole;
}

}  // namespace

// With several nodes of several ranks not all see the same: a rank alone on its node has one
// transport where others have two.
bool ReducesWhole(const Communicator& comm, const Reduction& reduction) {
  if (!comm.top() || comm.size() == 1) return false;
  if (comm.flattened() || (!comm.one_node() && !comm.all_apart())) return false;
  const Transport* const transport = comm.only_transport();
  return transport != nullptr &&
         transport->ReducesBlocks(WholeBlock(comm, nullptr, nullptr, 0, reduction));
}

Task ReduceScatter(Communicator& comm, const std::byte* block, std::span<const Part> parts,
                   std::byte* out, Reduction reduction) {
  DirectExchange exchange(comm, block, parts, out, reduction);
  for (int64_t begun = 0, step = 0; step < exchange.steps(); ++step) {
    const int64_t end = step + static_cast<int64_t>(kChunksInFlight);
    for (; begun < std::min(exchange.steps(), end); ++begun) HORON_CO_TRY(exchange.Begin(begun));
    for (Transfer& in : exchange.receives(step)) HORON_CO_TRY(co_await Finished(in));
    exchange.Reduce(step);
    for (Transfer& send : exchange.sends(step)) HORON_CO_TRY(co_await Finished(send));
  }
  co_return Status::Ok();
}

Task OverNodes(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
               Reduction inside, NodeStep between, PartIn where) {
  const auto& nodes = comm.nodes();
  const auto& mine = nodes[static_cast<size_t>(comm.node_of(comm.rank()))];
  const size_t owners = comm.smallest_node();

  // No two ranks share a node and are apart: the same tags serve both.
  Communicator node = comm.Part(mine);
  const auto parts = NearlyEqualParts(count, static_cast<int>(owners), node.size());
  const auto parts_bytes = InBytes(parts, inside.dtype);
  const auto local = static_cast<size_t>(node.rank());
  const Part own = parts_bytes[local];
  Buffer scratch;
  std::byte* part = output + own.begin;
  if (where == PartIn::kScratch && own.count > 0) {
    auto taken = comm.pool().Take(own.count);
    if (!taken.ok()) co_return taken.status();
    scratch = std::move(taken).value();
    part = scratch.data();
  }
  HORON_CO_TRY(co_await ReduceScatter(node, input, parts, part, inside));
  if (local < owners) {
    RecycledVector<int> members;
    for (const auto& others : nodes) members.push_back(others[local]);
    Communicator across = comm.Part(members);
    HORON_CO_TRY(co_await between(across, part, parts[local].count));
  }
  if (scratch.data() != nullptr)
    std::memcpy(output + own.begin, part, static_cast<size_t>(own.count));
  co_return co_await Allgather(node, output, parts_bytes);
}

Task Allreduce(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
               Reduction reduction) {
  if (count == 0) co_return Status::Ok();
  if (comm.size() == 1) {
    ScaleInto(reduction.dtype, reduction.scale, input, output, count);
    co_return Status::Ok();
  }
  if (ReducesWhole(comm, reduction)) {
    BlockReduction whole = WholeBlock(comm, input, output, count, reduction);
    HORON_CO_TRY(co_await comm.only_transport()->ReduceBlock(std::move(whole)));
    if (reduction.scale != 1.0) ScaleInto(reduction.dtype, reduction.scale, output, output, count);
    co_return Status::Ok();
  }
  if (comm.one_node() || comm.all_apart())
    co_return co_await FlatAllreduce(comm, input, output, count, reduction);
  // Scaled once, at the end: integers are truncated once.
  Reduction inside = reduction;
  inside.scale = 1.0;
  NodeStep between = [reduction](Communicator& across, std::byte* part, int64_t part_count) {
    return Allreduce(across, part, part_count, reduction);
  };
  co_return co_await OverNodes(comm, input, output, count, inside, std::move(between),
                               PartIn::kScratch);
}

}  // namespace horon
