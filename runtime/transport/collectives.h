// Collectives over Post: what every transport gets for free.
//
// All are Tasks (resumable, nothing blocks), all members call the same one in the same order within a
// bucket. Reductions add in ascending rank order, on whichever rank: for a given layout of ranks on
// nodes the result has the same bits on all ranks and in all runs.
// P ranks, S bytes.
#pragma once

#include <span>
#include <vector>

#include "runtime/transport/communicator.h"

namespace horon {

struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceKind kind = ReduceKind::kSum;
  double scale = 1.0;  // of the result
};

// First element of part i when `count` elements are cut into `parts` nearly equal parts: the first
// count % parts parts have one more (Horovod's rule for reducescatter).
int64_t PartBegin(int64_t count, int parts, int i);

// In place over a contiguous block of `count` elements. One message when a transport reduces blocks
// itself; otherwise reduce-scatter inside each node, exchange between nodes, allgather inside the node.
Task Allreduce(Communicator& comm, std::byte* block, int64_t count, Reduction reduction);

// Direct exchange: every rank sends part p to its owner, who adds the parts by ascending rank.
// Afterwards parts[p] = {begin, count} (elements) holds the result on rank p; the rest of the block is
// garbage. Sent per rank: S (P-1)/P. Scratch: at most P chunks of 256 KiB.
struct Part {
  int64_t begin = 0;
  int64_t count = 0;
};
Task ReduceScatter(Communicator& comm, std::byte* block, std::span<const Part> parts, Reduction reduction);

// Each rank's part (bytes at parts[rank]) to all others. In place. Sent per rank: S_rank (P-1).
Task Allgather(Communicator& comm, std::byte* block, std::span<const Part> parts_bytes);

// Binomial tree over the spans. Steps: ceil(log2 P). Sent: at most S log2 P (root).
Task Broadcast(Communicator& comm, std::span<const Span> spans, int root);

// send[p] goes to rank p, recv[p] comes from it; sizes must match in pairs.
Task Alltoall(Communicator& comm, std::span<const Span> send, std::span<const Span> recv);

// Dissemination: ceil(log2 P) empty messages.
// Source: Hensgen, Finkel, Manber, Int. J. Parallel Program. 17 (1988).
Task Barrier(Communicator& comm);

}  // namespace horon
