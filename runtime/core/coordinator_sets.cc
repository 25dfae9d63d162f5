// Changes of process sets, and the end of joining.
#include <algorithm>

#include "runtime/core/coordinator.h"

namespace horon {
namespace {

std::string RankList(const std::vector<int>& ranks) {
  return ToString(Shape(ranks.begin(), ranks.end()));
}

}  // namespace

Status Coordinator::CheckBuiltIn(const Row& row, Agreement* agreed) {
  const Request& first = *row.some();
  if (first.op == "join") {
    agreed->sizes = {last_joined_};
    return Status::Ok();
  }
  const bool form = FormsSet(first.op);
  if (form ? !Formed(row) : !row.joined.empty()) {
    return Status::InvalidArgument("process sets cannot be changed while ranks " +
                                   RankList(row.joined) +
                                   " have joined; do it before any rank joins, or after");
  }
  std::vector<const Request*> requests;
  for (const SharedRequest& r : row.by_rank) requests.push_back((r ? r : row.stand_in).get());
  HORON_TRY(CheckSame(requests, *row.ranks, "process sets",
                      [](const Request& r) { return ToString(r.splits); }));
  if (first.op == "process_set.remove") {
    agreed->sizes = first.splits;
    return Status::Ok();
  }
  HORON_ASSIGN(const int32_t id, PromiseSet({first.splits.begin(), first.splits.end()}, form));
  agreed->sizes = {id};
  return Status::Ok();
}

// The id of a set with these ranks, which may exist if it is `formed` by them.
Result<int32_t> Coordinator::PromiseSet(std::vector<int> ranks, bool formed) {
  const auto promised = promised_.find({formed, ranks});
  const int32_t known = promised != promised_.end() ? promised->second : sets_->IdOf(ranks, formed);
  if (known >= 0 && formed) return known;
  if (known >= 0) {
    return Status::InvalidArgument("a process set with the ranks " + RankList(ranks) +
                                   " exists already: it is number " + std::to_string(known));
  }
  const int32_t id = sets_->NextId(static_cast<int>(promised_.size()));
  if (id < 0)
    return Status::InvalidArgument("there are 255 process sets already; remove one first");
  promised_.emplace(std::pair(formed, std::move(ranks)), id);
  return id;
}

// Whether all members of a set that only they ask for have done so.
bool Coordinator::Formed(const Row& row) {
  const std::vector<int64_t>& members = row.first->splits;
  return std::all_of(members.begin(), members.end(), [&](int64_t rank) {
    return rank >= 0 && rank < static_cast<int64_t>(row.by_rank.size()) &&
           row.by_rank[static_cast<size_t>(rank)] != nullptr;
  });
}

// A set that only its members ask for is formed without the others.
bool Coordinator::IsOf(const Request& request, int rank) {
  const std::vector<int64_t>& members = request.splits;
  return !FormsSet(request.op) ||
         std::find(members.begin(), members.end(), rank) != members.end();
}

// Whether this rank is one that the row waits for, or has waited for.
bool Coordinator::Needs(const Row& row, int rank) const {
  if (Joined(rank) && &row != join_) return false;
  return IsOf(*row.first, rank);
}

}  // namespace horon
