#include "runtime/core/stall.h"

#include <algorithm>

#include "runtime/base/seconds.h"

namespace horon {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Keys are "<process set>/<name>"; users know the name.
std::string NameOf(const std::string& key) {
  const std::string name = key.substr(key.find('/') + 1);
  return key.starts_with("0/")
             ? "'" + name + "'"
             : "'" + name + "' (process set " + key.substr(0, key.find('/')) + ")";
}

std::string MainThread(const std::optional<Activity>& activity) {
  return !activity || activity->doing.empty() ? "" : "its main thread is " + activity->doing;
}

// Without its main thread's place.
std::string Doing(const std::optional<Activity>& activity) {
  if (!activity) return "does not answer";
  std::string text;
  if (activity->blocked >= activity->callers && !activity->waits.empty()) {
    text = "waits for " + NameOf(activity->waits[0]);
    if (activity->waits.size() > 1) text += " and others";
    return text;
  }
  return activity->last.empty() ? "has submitted nothing yet"
                                : "is busy; it last submitted " + NameOf(activity->last) + " " +
                                      Seconds(milliseconds{activity->last_ms}) + " ago";
}

// Two groups of one name may be on their way at once, if every rank submits both.
constexpr milliseconds kGroupPatience{1000};

std::string DescribeClash(const std::vector<const PendingTensor*>& sides) {
  std::string text = "Mismatched groups: ";
  for (size_t i = 0; i < sides.size(); ++i) {
    const PendingTensor& one = *sides[i];
    text += (i > 0 ? ", " : "") + Listed(one.ready) + " submitted " +
            (i > 0 ? "it" : "group " + NameOf(one.group)) + " as " +
            std::to_string(one.group_size) + " tensors (one is " + NameOf(one.key) + ")";
  }
  return text + ".";
}

std::string InGroup(const PendingTensor* tensor) {
  return tensor == nullptr || tensor->group.empty() ? "" : " of group " + NameOf(tensor->group);
}

bool Contains(const std::set<int>& set, const std::vector<int>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int r) { return set.contains(r); });
}

}  // namespace

std::string Listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// Begins with every rank whose threads all wait, and takes out, until nothing changes, who waits
// for something that needs only ranks with hope, or that runs already: it is not pending here, or
// only among others, who are through with it and have submitted it anew.
std::set<int> HopelessRanks(const std::vector<PendingTensor>& pending,
                            const std::vector<std::optional<Activity>>& activity) {
  std::set<int> hopeless;
  for (size_t r = 0; r < activity.size(); ++r) {
    const auto& a = activity[r];
    if (a && a->callers > 0 && a->blocked >= a->callers) hopeless.insert(static_cast<int>(r));
  }
  std::map<std::string, const PendingTensor*> by_key;
  for (const PendingTensor& tensor : pending) by_key[tensor.key] = &tensor;
  const auto has_hope = [&](int rank) {
    const auto& waits = activity[static_cast<size_t>(rank)]->waits;
    return waits.empty() || std::any_of(waits.begin(), waits.end(), [&](const std::string& key) {
             const auto it = by_key.find(key);
             if (it == by_key.end()) return true;
             const PendingTensor& tensor = *it->second;
             const bool anew =
                 std::find(tensor.ready.begin(), tensor.ready.end(), rank) == tensor.ready.end();
             return anew || !Contains(hopeless, tensor.missing);
           });
  };
  while (std::erase_if(hopeless, has_hope) > 0) {
  }
  return hopeless;
}

std::map<std::string, std::vector<const PendingTensor*>> ClashingGroups(
    const std::vector<PendingTensor>& pending) {
  std::map<std::string, std::vector<const PendingTensor*>> by_group;
  for (const PendingTensor& tensor : pending) {
    if (tensor.group.empty()) continue;
    auto& sides = by_group[tensor.group];
    const bool known = std::any_of(sides.begin(), sides.end(), [&](const PendingTensor* side) {
      return side->group_hash == tensor.group_hash && side->group_size == tensor.group_size;
    });
    if (!known) sides.push_back(&tensor);
  }
  std::erase_if(by_group, [](const auto& item) {
    const auto& sides = item.second;
    std::set<int> ranks;
    size_t submitted = 0;
    for (const PendingTensor* side : sides) {
      ranks.insert(side->ready.begin(), side->ready.end());
      submitted += side->ready.size();
    }
    const size_t wanted = sides[0]->ready.size() + sides[0]->missing.size();
    return sides.size() < 2 || ranks.size() != wanted || submitted != wanted;
  });
  return by_group;
}

std::string DescribePending(const PendingTensor& tensor,
                            const std::vector<std::optional<Activity>>& activity,
                            StallJudge::Time now) {
  std::string text = "tensor " + NameOf(tensor.key) + ": submitted by " + Listed(tensor.ready) +
                     " " + Seconds(duration_cast<milliseconds>(now - tensor.since)) + " ago";
  if (!tensor.missing.empty()) text += "; missing: ";
  constexpr size_t kMost = 8;
  for (size_t i = 0; i < tensor.missing.size() && i < kMost; ++i) {
    const int rank = tensor.missing[i];
    const auto& one = activity[static_cast<size_t>(rank)];
    text += (i > 0 ? "; rank " : "rank ") + std::to_string(rank) + " " + Doing(one);
    const std::string where = MainThread(one);
    if (!where.empty()) text += "; " + where;
  }
  if (tensor.missing.size() > kMost)
    text += "; and " + Listed({tensor.missing.begin() + kMost, tensor.missing.end()});
  return text;
}

StallJudge::StallJudge(int size, StallLimits limits)
    : limits_(limits),
      activity_(static_cast<size_t>(size)),
      answered_at_(static_cast<size_t>(size)) {}

std::vector<std::optional<Activity>> StallJudge::activity(Time now) const {
  auto aged = activity_;
  for (size_t r = 0; r < aged.size(); ++r)
    if (aged[r]) aged[r]->last_ms += duration_cast<milliseconds>(now - answered_at_[r]).count();
  return aged;
}

void StallJudge::Left(int rank) {
  left_.insert(rank);
  unanswered_.erase(rank);
  activity_[static_cast<size_t>(rank)].reset();
}

StallJudge::Findings StallJudge::Asked(Time now, const std::vector<PendingTensor>& pending) {
  Findings findings;
  JudgeTime(now, pending, findings);
  if (!complete()) {
    if (limits_.silent.count() > 0 && now - inquired_at_ >= limits_.silent) {
      findings.lost = *unanswered_.begin();
      findings.lost_because =
          "rank " + std::to_string(findings.lost) + " has not answered for " +
          Seconds(duration_cast<milliseconds>(now - inquired_at_)) +
          ": it is stopped (SIGSTOP, a debugger), its runtime is stuck, or its machine hangs or "
          "cannot be reached";
    }
    return findings;
  }
  findings.inquire = true;
  inquired_ = true;
  inquired_at_ = now;
  for (int r = 0; r < static_cast<int>(activity_.size()); ++r)
    if (!left_.contains(r)) unanswered_.insert(r);
  return findings;
}

StallJudge::Findings StallJudge::Answered(int rank, Activity activity, Time now,
                                          const std::vector<PendingTensor>& pending) {
  Findings findings;
  activity_[static_cast<size_t>(rank)] = std::move(activity);
  answered_at_[static_cast<size_t>(rank)] = now;
  unanswered_.erase(rank);
  if (!complete() || !std::exchange(inquired_, false)) return findings;
  JudgeGroups(now, pending, findings);
  JudgeDivergence(pending, findings);
  JudgeTime(now, pending, findings);
  return findings;
}

// Who polls may still do something else, but not if it has submitted nothing for so long.
void StallJudge::JudgeGroups(Time now, const std::vector<PendingTensor>& pending,
                             Findings& findings) {
  std::map<std::string, uint64_t> clashes;
  for (const auto& [group, sides] : ClashingGroups(pending)) {
    uint64_t submits = 0;
    Time since = sides[0]->since;
    for (const PendingTensor* side : sides) {
      since = std::max(since, side->since);
      for (const int rank : side->ready) {
        const auto& activity = activity_[static_cast<size_t>(rank)];
        submits += activity ? activity->submits : 0;
      }
    }
    clashes[group] = submits;
    const auto before = clashes_.find(group);
    if (before == clashes_.end() || before->second != submits) continue;
    if (now - since < kGroupPatience) continue;
    findings.failed.emplace_back(sides[0]->key, Status::InvalidArgument(DescribeClash(sides)));
  }
  clashes_ = std::move(clashes);
}

// A rank that submits something between two rounds was not stuck.
void StallJudge::JudgeDivergence(const std::vector<PendingTensor>& pending, Findings& findings) {
  std::map<int, uint64_t> suspects;
  std::set<int> certain;
  for (int rank : HopelessRanks(pending, activity_)) {
    const uint64_t submits = activity_[static_cast<size_t>(rank)]->submits;
    suspects[rank] = submits;
    const auto before = suspects_.find(rank);
    if (before != suspects_.end() && before->second == submits) certain.insert(rank);
  }
  suspects_ = std::move(suspects);
  if (certain.size() < suspects_.size()) return;
  const auto clashes = ClashingGroups(pending);
  std::map<std::string, const PendingTensor*> by_key;
  for (const PendingTensor& tensor : pending) by_key[tensor.key] = &tensor;
  for (const PendingTensor& tensor : pending) {
    std::string why, where;
    for (int rank : tensor.missing) {
      if (!certain.contains(rank)) continue;
      const auto& activity = activity_[static_cast<size_t>(rank)];
      const auto waits_for = by_key.find(activity->waits[0]);
      why = "rank " + std::to_string(rank) + " " + Doing(activity) +
            InGroup(waits_for == by_key.end() ? nullptr : waits_for->second);
      where = MainThread(activity);
      if (!where.empty()) where = "; rank " + std::to_string(rank) + ": " + where;
      break;
    }
    if (why.empty()) continue;
    const auto clash = clashes.find(tensor.group);
    findings.failed.emplace_back(
        tensor.key,
        Status::InvalidArgument(
            clash != clashes.end()
                ? DescribeClash(clash->second)
                : "tensor " + NameOf(tensor.key) + InGroup(&tensor) + " was submitted by " +
                      Listed(tensor.ready) + ", but " + why +
                      ", which cannot happen before: the ranks' programs took different ways" +
                      where));
  }
}

void StallJudge::JudgeTime(Time now, const std::vector<PendingTensor>& pending,
                           Findings& findings) {
  std::map<std::string, Time> still;
  std::vector<std::optional<Activity>> known;  // from the first tensor on that is described
  const auto describe = [&](const PendingTensor& tensor) {
    if (known.empty()) known = activity(now);
    return DescribePending(tensor, known, now);
  };
  for (const PendingTensor& tensor : pending) {
    const auto age = duration_cast<milliseconds>(now - tensor.since);
    if (limits_.busy.count() > 0 && age >= limits_.busy) {
      findings.failed.emplace_back(
          tensor.key, Status::Aborted(describe(tensor) +
                                      ". It was given up (HORON_STALL_SHUTDOWN_TIME_SECONDS)"));
      continue;
    }
    if (limits_.warn.count() == 0 || age < limits_.warn) continue;
    const auto warned = warned_.find(tensor.key);
    const bool due = warned == warned_.end() || now - warned->second >= limits_.warn;
    if (due) findings.warnings.push_back(describe(tensor));
    still[tensor.key] = due ? now : warned->second;
  }
  warned_ = std::move(still);
}

}  // namespace horon
