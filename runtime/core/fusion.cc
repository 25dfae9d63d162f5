#include "runtime/core/fusion.h"

namespace horon {
namespace {

bool Alike(const Entry& x, const Entry& y) {
  const Request &a = x.request(), &b = y.request();
  return x.what->op == y.what->op && a.dtype == b.dtype && a.device.kind == b.device.kind &&
         a.process_set == b.process_set && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.round == b.round && x.agreed.away == y.agreed.away && x.joined == y.joined &&
         x.kept == y.kept;
}

int64_t FusionBytes(const Entry& entry) {
  return entry.what->op->FusionBytes(entry.what->bytes, entry.request(), entry.agreed);
}

int64_t MostFused(const Entry& entry, const Tuning& tuning) {
  return entry.what->op->MostFused(tuning.fusion_bytes, entry.request().device.kind);
}

// Bytes of all, if one bucket takes them; else -1.
int64_t BytesAsOne(const Entries& batch, const Tuning& tuning) {
  const Op* const op = batch[0].what->op;
  const int64_t most = op->fusable() ? MostFused(batch[0], tuning) : 0;
  if (most <= 0) return -1;
  int64_t bytes = 0;
  for (const Entry& entry : batch) {
    if (!Alike(batch[0], entry)) return -1;
    bytes += FusionBytes(entry);
    if (bytes > most) return -1;
  }
  return bytes;
}

}  // namespace

// A step of a steady job is one bucket, mostly: its entries stay where they are.
RecycledVector<Bucket> PlanFusion(Entries batch, const Tuning& tuning) {
  RecycledVector<Bucket> buckets;
  if (batch.empty()) return buckets;
  if (const int64_t bytes = BytesAsOne(batch, tuning); bytes >= 0) {
    buckets.push_back({std::move(batch), bytes, tuning, true});
    return buckets;
  }
  RecycledVector<size_t> open;  // buckets that may still grow, at most one of a kind
  for (Entry& entry : batch) {
    const int64_t bytes = FusionBytes(entry);
    const int64_t fusion_bytes = MostFused(entry, tuning);
    const bool fusable = entry.what->op->fusable() && fusion_bytes > 0;
    size_t kind = 0;
    while (kind < open.size() && !Alike(buckets[open[kind]].entries[0], entry)) ++kind;
    if (fusable && kind < open.size() && buckets[open[kind]].bytes + bytes <= fusion_bytes) {
      Bucket& bucket = buckets[open[kind]];
      bucket.bytes += bytes;
      bucket.entries.push_back(std::move(entry));
      continue;
    }
    buckets.emplace_back();
    buckets.back().bytes = bytes;
    buckets.back().tuning = tuning;
    buckets.back().entries.push_back(std::move(entry));
    if (!fusable) continue;
    if (kind < open.size()) {
      open[kind] = buckets.size() - 1;
    } else {
      open.push_back(buckets.size() - 1);
    }
  }
  buckets.back().last = true;
  return buckets;
}

}  // namespace horon
