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
  lines_.emplace(id, Line{key, by_rank, agreed, now, 0});
  id_of_[key] = id;
  by_use_[now].push_back(id);
  return id;
}

void AgreementCache::Use(uint64_t id, uint64_t now) {
  Line& line = lines_.at(id);
  Unlist(id, line.used);
  line.used = now;
  by_use_[now].push_back(id);
}

void AgreementCache::EvictSet(int32_t process_set, uint64_t now) {
  for (const auto& [id, line] : lines_) {
    if (line.process_set() == process_set && line.evicted_at == 0) Evict(id, now);
  }
}

std::vector<uint64_t> AgreementCache::EvictOldest(uint64_t now) {
  std::vector<uint64_t> evicted;
  while (static_cast<int64_t>(id_of_.size()) > capacity_) {
    const uint64_t id = by_use_.begin()->second.front();
    Evict(id, now);
    evicted.push_back(id);
  }
  return evicted;
}

void AgreementCache::ForgetHeard(uint64_t heard) {
  std::erase_if(lines_, [&](const auto& item) {
    return item.second.evicted_at != 0 && item.second.evicted_at < heard;
  });
}

void AgreementCache::Evict(uint64_t id, uint64_t now) {
  Line& line = lines_.at(id);
  line.evicted_at = now;
  id_of_.erase(line.key);
  Unlist(id, line.used);
}

void AgreementCache::Unlist(uint64_t id, uint64_t used) {
  const auto it = by_use_.find(used);
  std::erase(it->second, id);
  if (it->second.empty()) by_use_.erase(it);
}

}  // namespace horon
