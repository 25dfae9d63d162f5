// AgreementCache: what the coordinator remembers of the requests that were agreed, under cache ids.
// The ranks' own memory of the same agreements is in response_cache.h; this side gives the ids out
// and decides when one ends. Pure; called by the coordinator, on the holder of the baton.
//
// A line is evicted when it was not used for longest, when its name is agreed anew, or when its
// process set is removed. It stays here, evicted, until every rank has heard of that: a report that
// names it may be on its way. Times are sequence numbers of decisions.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/recycler.h"
#include "runtime/op/request.h"

namespace horon {

using SharedRequest = std::shared_ptr<const Request>;

class AgreementCache {
 public:
  struct Line {
    std::string key;
    std::vector<SharedRequest> by_rank;  // by rank in the process set
    Agreement agreed;
    uint64_t evicted_at = 0;            // 0: alive
    std::list<uint64_t>::iterator use;  // its place in by_use_; while alive
    int32_t process_set() const { return by_rank[0]->process_set; }
  };

  // `capacity`: lines alive; 0 remembers nothing. `on_evict` is told each id that ends.
  explicit AgreementCache(
      int64_t capacity, std::function<void(uint64_t)> on_evict = [](uint64_t) {})
      : capacity_(capacity), on_evict_(std::move(on_evict)) {}

  // Null: never given out, or forgotten.
  const Line* Find(uint64_t id) const;
  // Null also if it was evicted.
  const Line* FindAlive(uint64_t id) const;
  // The id, new in each call; it replaces what was remembered under this key. 0: not remembered.
  uint64_t Remember(const std::string& key, const std::vector<SharedRequest>& by_rank,
                    const Agreement& agreed, uint64_t now);
  // `id` is alive.
  void Use(uint64_t id);
  void EvictSet(int32_t process_set, uint64_t now);
  // What is beyond the capacity. Gives the ids that every rank must be told of.
  RecycledVector<uint64_t> EvictOldest(uint64_t now);
  // Every rank has heard all decisions up to `heard`.
  void ForgetHeard(uint64_t heard);

 private:
  void Evict(uint64_t id, uint64_t now);

  int64_t capacity_;
  std::function<void(uint64_t)> on_evict_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, Line> lines_;
  std::unordered_map<std::string, uint64_t> id_of_;  // those alive, by key
  std::list<uint64_t> by_use_;   // those alive, the one unused for longest first
  std::list<uint64_t> evicted_;  // those not yet forgotten, in order
};

}  // namespace horon
