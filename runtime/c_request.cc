#include "runtime/c_request.h"

#include <cmath>
#include <cstring>

namespace horon {
namespace {

Status CheckElements(const horon_request& r, const std::string& who) {
  __int128 count = 1;
  for (int i = 0; i < r.ndim; ++i) {
    if (r.shape[i] < 0)
      return Status::InvalidArgument(who + "dimension " + std::to_string(i) + " is negative");
    count *= r.shape[i];
    if (count > (int64_t{1} << 56))
      return Status::InvalidArgument(who + "more elements than memory can hold");
  }
  if (count > 0 && r.input == nullptr) return Status::InvalidArgument(who + "input is null");
  return Status::Ok();
}

Status CheckTensor(const horon_request& r) {
  if (r.struct_bytes != sizeof(horon_request))
    return Status::InvalidArgument("horon_request.struct_bytes is not sizeof(horon_request)");
  if (r.name == nullptr || *r.name == '\0') return Status::InvalidArgument("a tensor needs a name");
  const std::string who = "tensor '" + std::string(r.name) + "': ";
  if (r.op == nullptr || std::strncmp(r.op, "process_set.", 12) == 0)
    return Status::InvalidArgument(who + "no op was given");
  if (r.dtype < 0 || r.dtype >= kDataTypes)
    return Status::InvalidArgument(who + "dtype " + std::to_string(r.dtype) + " is not supported");
  if (r.ndim < 0 || r.ndim > 64 || (r.ndim > 0 && r.shape == nullptr))
    return Status::InvalidArgument(who + std::to_string(r.ndim) + " dimensions");
  if (r.device >= 0)
    return Status::Unsupported(who + "it lies on GPU " + std::to_string(r.device) +
                               ", and this build of Horon has no CUDA support");
  HORON_TRY(CheckElements(r, who));
  if (r.splits_count < 0 || r.weights_count < 0 || (r.splits_count > 0 && r.splits == nullptr) ||
      (r.weights_count > 0 && r.weights == nullptr))
    return Status::InvalidArgument(who + "splits or weights are missing");
  if (!std::isfinite(r.prescale) || !std::isfinite(r.postscale))
    return Status::InvalidArgument(who + "a scale factor is not finite");
  return Status::Ok();
}

Status CheckMember(const Runtime& runtime, const horon_request& r) {
  const auto ranks = runtime.process_sets().Find(r.process_set);
  if (!ranks)
    return Status::InvalidArgument("tensor '" + std::string(r.name) + "': process set " +
                                   std::to_string(r.process_set) +
                                   " does not exist or was removed");
  for (int member : *ranks) {
    if (member == runtime.rank()) return Status::Ok();
  }
  return Status::InvalidArgument(
      "tensor '" + std::string(r.name) + "': rank " + std::to_string(runtime.rank()) +
      " is not a member of process set " + std::to_string(r.process_set));
}

Result<Entry> MakeEntry(Runtime& runtime, const horon_request& r) {
  HORON_TRY(CheckTensor(r));
  HORON_TRY(CheckMember(runtime, r));
  HORON_ASSIGN([[maybe_unused]] Op* const op, runtime.ops().Find(r.op));
  Entry entry;
  Request& request = entry.request;
  request.name = r.name;
  request.op = r.op;
  request.dtype = static_cast<DataType>(r.dtype);
  request.shape.assign(r.shape, r.shape + r.ndim);
  request.prescale = r.prescale == 0 ? 1.0 : r.prescale;
  request.postscale = r.postscale == 0 ? 1.0 : r.postscale;
  request.process_set = r.process_set;
  request.round = r.round;
  request.splits.assign(r.splits, r.splits + r.splits_count);
  request.weights.assign(r.weights, r.weights + r.weights_count);
  entry.input = static_cast<const std::byte*>(r.input);
  entry.output = static_cast<std::byte*>(r.output);
  return entry;
}

}  // namespace

Result<std::shared_ptr<Work>> Submit(Runtime& runtime, std::span<const horon_request> requests,
                                     const char* group, bool wake) {
  if (group != nullptr && (requests.empty() || *group == '\0'))
    return Status::InvalidArgument("a group needs a name and at least one tensor");
  auto work = std::make_shared<Work>(static_cast<int>(requests.size()));
  std::vector<Queue::Submission> submissions;
  std::string names;
  for (const horon_request& r : requests) {
    HORON_ASSIGN(Entry entry, MakeEntry(runtime, r));
    if (group != nullptr) {
      entry.request.group = group;
      entry.request.group_size = static_cast<int32_t>(requests.size());
      names += entry.request.name + '\n';
    }
    submissions.push_back({std::move(entry), work, static_cast<int>(submissions.size())});
  }
  if (group != nullptr) {
    const uint64_t hash = TensorId(requests[0].process_set, names);
    for (auto& s : submissions) s.entry.request.group_hash = hash;
  }
  HORON_TRY(runtime.Submit(std::move(submissions), wake));
  return work;
}

}  // namespace horon
