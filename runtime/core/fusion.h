// PlanFusion: which agreed entries share a bucket. Pure: every rank plans the same batch the same
// way, so plans never travel.
//
// Entries may share a bucket when their op is fusable and op spec, dtype, device, process set,
// scale factors and round are equal (only what Op::Check has compared over the ranks may decide). A
// bucket holds at most what the op makes of tuning.fusion_bytes unless one entry alone is larger; 0
// leaves every entry alone. Later entries may join an earlier bucket over others that do not fit
// it.
#pragma once

#include "runtime/core/entry.h"
#include "runtime/core/tuning.h"

namespace horon {

struct Bucket {
  Entries entries;  // at least one; in agreed order
  int64_t bytes = 0;
  Tuning tuning;
  bool last = false;  // of its batch
};

RecycledVector<Bucket> PlanFusion(Entries batch, const Tuning& tuning);

}  // namespace horon
