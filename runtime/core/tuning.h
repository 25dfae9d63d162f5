// Tuning: how buckets are cut, on all ranks alike. Rank 0's values travel with its decisions; each
// batch is cut as the decision said under which it was agreed. Sums come out the same for all
// values but `hierarchical`. Plain.
#pragma once

#include <cstdint>

#include "runtime/base/config.h"

namespace horon {

struct Tuning {
  int64_t fusion_bytes = Config().fusion_bytes;  // of a bucket of several tensors; 0: each alone
  int64_t chunk_bytes = 0;   // streamed through shared memory; 0: HORON_SHM_CHUNK_BYTES, the most
  int64_t slice_bytes = 0;   // of a bucket between nodes; 0: chosen by the number of nodes
  bool hierarchical = true;  // inside nodes, then between them; else each with each

  bool operator==(const Tuning&) const = default;
};

inline Tuning TuningOf(const Config& config) {
  return {config.fusion_bytes, 0, config.slice_bytes, config.hierarchical};
}

}  // namespace horon
