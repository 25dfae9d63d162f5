#include "runtime/core/agreement_cache.h"

namespace horon {

const AgreementCache::Line* AgreementCache::Find(uint64_t id) const {
  const auto it = lines_.find(id);
  return it == lines_.end() ? nullptr : &it->second;
}

const AgreementCache::Line* AgreementCache::FindAlive(uint64_t id) const {
  const Line* line = Find(id);
  return line != nullptr && line->evicted_at == 0 ? line : nullptr;
}

uint64_t AgreementCache::Remember(const std::string& key, const std::vector<SharedRequest>& by_rank,
                                  const Agreement& agreed, uint64_t now) {
  if (capacity_ == 0) return 0;
  // Same name, other shape: every rank replaces it when it sees the new id.
  const auto old = id_of_.find(key);
  if (old != id_of_.end()) Evict(old->second, now);
  const uint64_t id = next_id_++;
  by_use_.push_back(id);
  lines_.emplace(id, Line{key, by_rank, agreed, 0, std::prev(by_use_.end())});
  id_of_[key] = id;
  return id;
}

void AgreementCache::Use(uint64_t id) { by_use_.splice(by_use_.end(), by_use_, lines_.at(id).use); }

void AgreementCache::EvictSet(int32_t process_set, uint64_t now) {
  for (const auto& [id, line] : lines_) {
    if (line.process_set() == process_set && line.evicted_at == 0) Evict(id, now);
  }
}

RecycledVector<uint64_t> AgreementCache::EvictOldest(uint64_t now) {
  RecycledVector<uint64_t> evicted;
  while (static_cast<int64_t>(id_of_.size()) > capacity_) {
    const uint64_t id = by_use_.front();
    Evict(id, now);
    evicted.push_back(id);
  }
  return evicted;
}

void AgreementCache::ForgetHeard(uint64_t heard) {
  while (!evicted_.empty() && lines_.at(evicted_.front()).evicted_at < heard) {
    lines_.erase(evicted_.front());
    evicted_.pop_front();
  }
}

void AgreementCache::Evict(uint64_t id, uint64_t now) {
  Line& line = lines_.at(id);
  line.evicted_at = now;
  id_of_.erase(line.key);
  evicted_.splice(evicted_.end(), by_use_, line.use);
  on_evict_(id);
}

}  // namespace horon
