#include "runtime/c_process_sets.h"

#include <algorithm>

#include "runtime/c_work.h"

namespace horon {
namespace {

// What the runtime does by itself. `wake`: the caller does not wait for it at once.
Result<std::shared_ptr<Work>> SubmitBuiltIn(Runtime& runtime, const char* op,
                                            const std::string& name, std::vector<int64_t> numbers,
                                            bool wake) {
  std::shared_ptr<Work> work = MakeWork(1);
  Request request;
  request.op = op;
  request.name = name;
  request.splits = std::move(numbers);
  request.dtype = DataType::kUInt8;
  HORON_ASSIGN(SharedRegistration what, runtime.registry().Of(std::move(request)));
  Submission submission{std::move(what)};
  HORON_TRY(runtime.Submit({&submission, 1}, work, wake));
  return work;
}

// The work it was, done and ok.
Result<std::shared_ptr<Work>> ChangeSets(Runtime& runtime, const char* op, const std::string& name,
                                         std::vector<int64_t> numbers) {
  HORON_ASSIGN(auto work, SubmitBuiltIn(runtime, op, name, std::move(numbers), false));
  HORON_TRY(runtime.WaitLooking(*work));
  return work;
}

// One name for all: ranks that change different sets meet.
constexpr const char* kChange = "change of process sets";

Result<std::vector<int64_t>> Sorted(const Runtime& runtime, std::span<const int> ranks) {
  std::vector<int64_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty() || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
      sorted.front() < 0 || sorted.back() >= runtime.topology().size()) {
    return Status::InvalidArgument(
        "a process set needs different ranks between 0 and size - 1, not " + ToString(sorted));
  }
  return sorted;
}

}  // namespace

Result<std::shared_ptr<Work>> SubmitJoin(Runtime& runtime) {
  return SubmitBuiltIn(runtime, "join", "join of all ranks", {}, true);
}

Result<int> AddProcessSet(Runtime& runtime, std::span<const int> ranks) {
  HORON_ASSIGN(std::vector<int64_t> sorted, Sorted(runtime, ranks));
  HORON_ASSIGN(const auto work, ChangeSets(runtime, "process_set.add", kChange, std::move(sorted)));
  return static_cast<int>(work->outputs()[0].received_splits[0]);
}

Result<int> FormProcessSet(Runtime& runtime, std::span<const int> ranks, bool in_time) {
  HORON_ASSIGN(std::vector<int64_t> sorted, Sorted(runtime, ranks));
  if (!std::binary_search(sorted.begin(), sorted.end(), runtime.rank())) {
    return Status::InvalidArgument("rank " + std::to_string(runtime.rank()) +
                                   " cannot form a process set of ranks " + ToString(sorted) +
                                   ": only its members do");
  }
  // Different sets are formed side by side.
  const std::string name = "process set " + ToString(sorted);
  HORON_ASSIGN(const auto work, ChangeSets(runtime, in_time ? kFormSetInTime : kFormSet, name,
                                           std::move(sorted)));
  return static_cast<int>(work->outputs()[0].received_splits[0]);
}

Status RemoveProcessSet(Runtime& runtime, int id) {
  if (id == 0 || !runtime.process_sets().Find(id)) {
    return Status::InvalidArgument("process set " + std::to_string(id) +
                                   (id == 0 ? " is all ranks and stays" : " does not exist"));
  }
  return ChangeSets(runtime, "process_set.remove", kChange, {id}).status();
}

int ProcessSetSize(const Runtime& runtime, int id) {
  const auto ranks = runtime.process_sets().Find(id);
  return ranks ? static_cast<int>(ranks->size()) : -1;
}

int ProcessSetRank(const Runtime& runtime, int id) {
  const auto ranks = runtime.process_sets().Find(id);
  for (size_t i = 0; ranks && i < ranks->size(); ++i) {
    if ((*ranks)[i] == runtime.rank()) return static_cast<int>(i);
  }
  return -1;
}

Status CopyProcessSet(const Runtime& runtime, int id, int* out) {
  const auto ranks = runtime.process_sets().Find(id);
  if (!ranks)
    return Status::InvalidArgument("process set " + std::to_string(id) + " does not exist");
  std::copy(ranks->begin(), ranks->end(), out);
  return Status::Ok();
}

}  // namespace horon
