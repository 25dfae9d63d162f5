// What runs on ranks that have not asked for it. Ranks that have joined have no more tensors until
// all ranks have joined. What the others submit meanwhile is ready without them, and each op says
// what becomes of their part (WhenJoined). Such an agreement holds for once and is not remembered;
// what was remembered before stays so, and holds again when all are back.
#include <algorithm>
#include <memory>

#include "runtime/core/coordinator.h"

namespace horon {

bool Coordinator::Joined(int rank) const {
  return join_ != nullptr && join_->by_rank[static_cast<size_t>(rank)] != nullptr;
}

void Coordinator::Join(Row& row, int rank) {
  join_ = &row;
  last_joined_ = rank;
  ForgetOwed(rank);  // it will not come late to what has failed
}

// Whether every rank has reported it that still will. A process set that only its own ranks ask for
// is formed without the others.
bool Coordinator::Complete(const Row& row) const {
  if (row.reported == static_cast<int>(row.ranks->size())) return true;
  if (join_ == nullptr && (row.cache_id != 0 || !FormsSet(row.first->op))) return false;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (!row.by_rank[i] && Needs(row, (*row.ranks)[i])) return false;
  }
  return true;
}

// What the ranks that are missing are taken to ask for.
void Coordinator::StandIn(Row& row) const {
  row.joined.clear();
  if (row.reported == static_cast<int>(row.ranks->size())) return;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (!row.by_rank[i]) row.joined.push_back((*row.ranks)[i]);
  }
  auto request = std::make_shared<Request>(*row.first);
  request->joined = true;
  const Result<Op*> op = ops_->Find(request->op);
  if (op.ok() && op.value()->when_joined() == WhenJoined::kNoRows) {
    if (!request->shape.empty()) request->shape[0] = 0;
    request->splits.clear();
  }
  row.stand_in = std::move(request);
}

// A rank has joined: what waited for it alone is complete.
void Coordinator::ConsiderAll() {
  for (auto& [key, row] : rows_) {
    if (row.reported > 0 && !row.ready && &row != join_) Consider(row);
  }
}

void Coordinator::RunWithout(Row& row, Decision& decision) {
  Verdict verdict;
  verdict.process_set = row.stand_in->process_set;
  verdict.name = row.stand_in->name;
  verdict.agreed = std::move(row.agreed);
  verdict.joined = std::move(row.joined);
  verdict.stand_in = *row.stand_in;
  verdict.stand_in.joined = false;  // there it is a tensor like any other
  decision.order.push_back(0);
  decision.verdicts.push_back(std::move(verdict));
}

}  // namespace horon
