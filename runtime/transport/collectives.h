// Collectives over Post: what every transport gets for free.
//
// All are Tasks (resumable, nothing blocks), all members call the same one in the same order within
// a bucket. Reductions add in ascending rank order, on whichever rank: for a given layout of ranks
// on nodes the result has the same bits on all ranks and in all runs. P ranks, S bytes. Memory
// behind the spans and blocks outlives the Task. docs/algorithms.md has more.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/transport/communicator.h"

namespace horon {

struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceKind kind = ReduceKind::kSum;
  double scale = 1.0;  // of the result
};

struct Part {
  int64_t begin = 0;
  int64_t count = 0;
};

// First element of part i when `count` elements are cut into `parts` nearly equal parts: the first
// count % parts parts have one more (Horovod's rule for reducescatter).
int64_t PartBegin(int64_t count, int parts, int i);
// The `parts` parts of `count` elements, followed by empty ones up to `size` in all.
RecycledVector<Part> NearlyEqualParts(int64_t count, int parts, int size);
// The same parts in bytes.
RecycledVector<Part> InBytes(std::span<const Part> parts, DataType dtype);

// Whether a transport reduces blocks of this group itself. The bucket's whole group only, and its
// buckets one after the other: such collectives match by their order.
bool ReducesWhole(const Communicator& comm, const Reduction& reduction);

// Of `count` contiguous elements; `output` may be `input`, and overlaps it in no other way. One
// call when a transport reduces blocks itself; otherwise reduce-scatter inside each node, exchange
// between nodes, allgather inside the node, and no element of the output is written to before it
// has come from every rank. Sent per rank, with one node or one rank a node: 2 S (P-1)/P, and
// S (P-1) up to 4 KiB.
Task Allreduce(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
               Reduction reduction);
inline Task Allreduce(Communicator& comm, std::byte* block, int64_t count, Reduction reduction) {
  return Allreduce(comm, block, block, count, reduction);
}

// Direct exchange: every rank sends part p to its owner, who adds the parts by ascending rank.
// Afterwards `out` holds the result for parts[p] = {begin, count} (elements) on rank p; it may be
// that part of the block, which is only read. Sent per rank: S (P-1)/P. Scratch: at most 4 P chunks
// of 128 KiB.
Task ReduceScatter(Communicator& comm, const std::byte* block, std::span<const Part> parts,
                   std::byte* out, Reduction reduction);

// Each rank's part (bytes at parts[rank]) to all others. In place. Sent per rank: S_rank (P-1).
Task Allgather(Communicator& comm, std::byte* block, std::span<const Part> parts_bytes);

// Binomial tree over the spans, in chunks that flow down the tree. Steps: ceil(log2 P) + chunks
// - 1. Sent: at most S log2 P (root). `copies`, of the root alone: where it wants the same bytes
// itself (some may lie there already), copied while they travel.
Task Broadcast(Communicator& comm, std::span<const Span> spans, int root,
               std::span<const Span> copies = {});

// send[p] goes to rank p, recv[p] comes from it; sizes must match in pairs.
Task Alltoall(Communicator& comm, std::span<const Span> send, std::span<const Span> recv);

// Dissemination: ceil(log2 P) empty messages.
// Source: Hensgen, Finkel, Manber, Int. J. Parallel Program. 17 (1988).
Task Barrier(Communicator& comm);

// What is done between nodes with one part of the block, in place. `across` holds one rank of every
// node, by ascending node.
using NodeStep = std::function<Task(Communicator& across, std::byte* part, int64_t count)>;

// Where a rank's part is while its node reduces it and the nodes exchange it: in scratch of a
// part's size, so that the output is written to only with what comes of it, or in the output.
enum class PartIn { kScratch, kOutput };

// Hierarchy: reduce-scatter inside the node into as many parts as the smallest node has ranks, the
// step between nodes (one for each part, at once, so that all links are busy), allgather inside the
// node. `output` may be `input`.
Task OverNodes(Communicator& comm, const std::byte* input, std::byte* output, int64_t count,
               Reduction inside, NodeStep between, PartIn where);

}  // namespace horon
