#include "runtime/core/stall.h"

#include <algorithm>

namespace horon {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string Seconds(milliseconds time) {
  const int64_t tenths = time.count() / 100;
  return tenths >= 100 ? std::to_string(tenths / 10) + " s"
                       : std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string Ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// Keys are "<process set>/<name>"; users know the name.
std::string NameOf(const std::string& key) {
  const std::string name = key.substr(key.find('/') + 1);
  return key.starts_with("0/")
             ? "'" + name + "'"
             : "'" + name + "' (process set " + key.substr(0, key.find('/')) + ")";
}

std::string Doing(const std::optional<Activity>& activity) {
  if (!activity) return "does not answer";
  std::string text;
  if (activity->blocked >= activity->callers && !activity->waits.empty()) {
    text = "waits for " + NameOf(activity->waits[0]);
    if (activity->waits.size() > 1) text += " and others";
    return text;
  }
  text = activity->last.empty() ? "has submitted nothing yet"
                                : "is busy; it last submitted " + NameOf(activity->last) + " " +
                                      Seconds(milliseconds{activity->last_ms}) + " ago";
  return activity->doing.empty() ? text : text + "; its main thread is " + activity->doing;
}

bool Contains(const std::set<int>& set, const std::vector<int>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int r) { return set.contains(r); });
}

}  // namespace

// Begins with every rank whose threads all wait, and takes out, until nothing changes, who waits
// for something that is not pending here (it runs already) or that needs only ranks with hope.
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
             return it == by_key.end() || !Contains(hopeless, it->second->missing);
           });
  };
  while (std::erase_if(hopeless, has_hope) > 0) {
  }
  return hopeless;
}

std::string DescribePending(const PendingTensor& tensor,
                            const std::vector<std::optional<Activity>>& activity,
                            StallJudge::Time now) {
  std::string text = "tensor " + NameOf(tensor.key) + ": submitted by " + Ranks(tensor.ready) +
                     " " + Seconds(duration_cast<milliseconds>(now - tensor.since)) +
                     " ago; missing: ";
  constexpr size_t kMost = 8;
  for (size_t i = 0; i < tensor.missing.size() && i < kMost; ++i) {
    const int rank = tensor.missing[i];
    text += (i > 0 ? "; rank " : "rank ") + std::to_string(rank) + " " +
            Doing(activity[static_cast<size_t>(rank)]);
  }
  if (tensor.missing.size() > kMost)
    text += "; and " + std::to_string(tensor.missing.size() - kMost) + " more ranks";
  return text;
}

StallJudge::StallJudge(int size, StallLimits limits)
    : limits_(limits), activity_(static_cast<size_t>(size)) {}

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
          ": it is stopped (SIGSTOP, a debugger), or its machine hangs or cannot be reached";
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
  unanswered_.erase(rank);
  if (!complete() || !std::exchange(inquired_, false)) return findings;
  JudgeDivergence(pending, findings);
  JudgeTime(now, pending, findings);
  return findings;
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
  for (const PendingTensor& tensor : pending) {
    std::string why;
    for (int rank : tensor.missing) {
      if (!certain.contains(rank)) continue;
      why = "rank " + std::to_string(rank) + " " + Doing(activity_[static_cast<size_t>(rank)]);
      break;
    }
    if (why.empty()) continue;
    findings.failed.emplace_back(
        tensor.key,
        Status::InvalidArgument(
            "tensor " + NameOf(tensor.key) + " was submitted by " + Ranks(tensor.ready) + ", but " +
            why + ", which cannot happen before: the ranks' programs took different ways"));
  }
}

void StallJudge::JudgeTime(Time now, const std::vector<PendingTensor>& pending,
                           Findings& findings) {
  std::map<std::string, Time> still;
  for (const PendingTensor& tensor : pending) {
    const auto age = duration_cast<milliseconds>(now - tensor.since);
    if (limits_.busy.count() > 0 && age >= limits_.busy) {
      findings.failed.emplace_back(
          tensor.key, Status::Aborted(DescribePending(tensor, activity_, now) +
                                      ". It was given up (HORON_STALL_SHUTDOWN_TIME_SECONDS)"));
      continue;
    }
    if (limits_.warn.count() == 0 || age < limits_.warn) continue;
    const auto warned = warned_.find(tensor.key);
    const bool due = warned == warned_.end() || now - warned->second >= limits_.warn;
    if (due) findings.warnings.push_back(DescribePending(tensor, activity_, now));
    still[tensor.key] = due ? now : warned->second;
  }
  warned_ = std::move(still);
}

}  // namespace horon
