// Coordinator: a row a tensor name, and its life between the agreement cache and the decisions.
#include <utility>

#include "runtime/core/coordinator.h"

namespace horon {

void Coordinator::Row::Put(int index, SharedRequest request) {
  if (!first) {
    first = request;
  } else if (first != request) {
    mixed = mixed || first->group_hash != request->group_hash ||
            first->group_size != request->group_size || first->group != request->group;
  }
  by_rank[static_cast<size_t>(index)] = std::move(request);
  ++reported;
}

// By its cache id alone, if all ranks know what stands under it.
void Coordinator::RunRow(Row& row, Decision& decision) {
  if (!row.joined.empty()) {
    RunWithout(row, decision);
    return;
  }
  if (cache_.FindAlive(row.cache_id) != nullptr) {
    decision.order.push_back(row.cache_id);
    cache_.Use(row.cache_id);
    return;
  }
  const Request& first = *row.by_rank[0];
  Verdict verdict;
  verdict.process_set = first.process_set;
  verdict.name = first.name;
  verdict.agreed = std::move(row.agreed);
  if (Cacheable(first)) {
    verdict.cache_id = cache_.Remember(*row.key, row.by_rank, verdict.agreed, sequence_);
    Link(row, verdict.cache_id);
  }
  decision.order.push_back(0);
  decision.verdicts.push_back(std::move(verdict));
}

void Coordinator::Link(Row& row, uint64_t cache_id) {
  if (cache_id == 0) return;
  row.remembered = cache_id;
  row_of_[cache_id] = &row;
}

// The agreement is not remembered any more.
void Coordinator::Unlink(uint64_t cache_id) {
  const auto it = row_of_.find(cache_id);
  if (it == row_of_.end()) return;
  Row& row = *it->second;
  row_of_.erase(it);
  row.remembered = 0;
  if (!std::exchange(row.listed, true)) idle_.push_back(&row);
}

// Done with, whether it ran or failed.
void Coordinator::Clear(Row& row) {
  for (SharedRequest& request : row.by_rank) request.reset();
  row.first.reset();
  row.stand_in.reset();
  row.joined.clear();
  if (join_ == &row) join_ = nullptr;
  row.mixed = false;
  if (row.reported > 0 && !row.patient) --waiting_;
  row.reported = 0;
  row.cache_id = 0;
  if (row.remembered == 0 && !std::exchange(row.listed, true)) idle_.push_back(&row);
}

void Coordinator::Withdraw(uint64_t cache_id) {
  const auto it = row_of_.find(cache_id);
  if (it == row_of_.end() || it->second->reported == 0) return;
  Row& row = *it->second;
  // Under the same name a rank may have reported another request, which it will not report again.
  std::vector<SharedRequest> others = row.by_rank;
  const std::vector<SharedRequest>& agreed = cache_.Find(cache_id)->by_rank;
  bool withdrawn = false;
  for (size_t i = 0; i < others.size(); ++i) {
    if (!others[i] || !(*others[i] == *agreed[i])) continue;
    others[i].reset();
    withdrawn = true;
  }
  if (!withdrawn) return;
  const auto group = group_ready_.find(row.group);
  if (group != group_ready_.end()) std::erase(group->second, &row);
  Clear(row);
  for (size_t i = 0; i < others.size(); ++i) {
    if (others[i]) row.Put(static_cast<int>(i), std::move(others[i]));
  }
  Sweep();
}

// Not at once: whoever goes through rows may still hold them.
void Coordinator::Sweep() {
  for (Row* row : std::exchange(idle_, {})) {
    row->listed = false;
    if (row->reported == 0 && row->remembered == 0) rows_.erase(std::string(*row->key));
  }
}

}  // namespace horon
