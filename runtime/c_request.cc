#include "runtime/c_request.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/foresight.h"
#include "runtime/c_work.h"

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
  return Status::Ok();
}

Status CheckTensor(const horon_request& r) {
  if (r.struct_bytes != sizeof(horon_request))
    return Status::InvalidArgument("horon_request.struct_bytes is not sizeof(horon_request)");
  if (r.name == nullptr || *r.name == '\0') return Status::InvalidArgument("a tensor needs a name");
  const std::string who = "tensor '" + std::string(r.name) + "': ";
  if (r.op == nullptr || IsBuiltIn(r.op)) return Status::InvalidArgument(who + "no op was given");
  if (r.dtype < 0 || r.dtype >= kDataTypes)
    return Status::InvalidArgument(who + "dtype " + std::to_string(r.dtype) + " is not supported");
  if (r.ndim < 0 || r.ndim > 64 || (r.ndim > 0 && r.shape == nullptr))
    return Status::InvalidArgument(who + std::to_string(r.ndim) + " dimensions");
  HORON_TRY(CheckElements(r, who));
  if (r.splits_count < 0 || r.weights_count < 0 || (r.splits_count > 0 && r.splits == nullptr) ||
      (r.weights_count > 0 && r.weights == nullptr))
    return Status::InvalidArgument(who + "splits or weights are missing");
  if (!std::isfinite(r.prescale) || !std::isfinite(r.postscale))
    return Status::InvalidArgument(who + "a scale factor is not finite");
  return Status::Ok();
}

Status CheckMember(const Runtime& runtime, int32_t process_set, const std::string& name) {
  const auto ranks = runtime.process_sets().Find(process_set);
  if (!ranks)
    return Status::InvalidArgument("tensor '" + name + "': process set " +
                                   std::to_string(process_set) + " does not exist or was removed");
  for (int member : *ranks) {
    if (member == runtime.rank()) return Status::Ok();
  }
  return Status::InvalidArgument("tensor '" + name + "': rank " + std::to_string(runtime.rank()) +
                                 " is not a member of process set " + std::to_string(process_set));
}

struct Group {  // empty name: alone
  std::string name;
  int32_t size = 0;
  uint64_t hash = 0;
};

Request RequestOf(const horon_request& r, const Group& group) {
  Request request;
  request.name = r.name;
  request.op = r.op;
  request.dtype = static_cast<DataType>(r.dtype);
  request.device = DeviceOf(r.device);
  request.shape.assign(r.shape, r.shape + r.ndim);
  request.prescale = r.prescale == 0 ? 1.0 : r.prescale;
  request.postscale = r.postscale == 0 ? 1.0 : r.postscale;
  request.process_set = r.process_set;
  request.group = group.name;
  request.group_size = group.size;
  request.group_hash = group.hash;
  request.round = r.round;
  request.splits.assign(r.splits, r.splits + r.splits_count);
  request.weights.assign(r.weights, r.weights + r.weights_count);
  return request;
}

// Whether RequestOf would give just this. The request was valid once, so the call is.
bool IsOf(const Request& request, const horon_request& r, const Group& group) {
  const auto same = [](const auto& known, const auto* given, int count) {
    return static_cast<int>(known.size()) == count && std::equal(known.begin(), known.end(), given);
  };
  return r.op != nullptr && request.op == r.op && request.dtype == static_cast<DataType>(r.dtype) &&
         request.device == DeviceOf(r.device) && same(request.shape, r.shape, r.ndim) &&
         request.prescale == (r.prescale == 0 ? 1.0 : r.prescale) &&
         request.postscale == (r.postscale == 0 ? 1.0 : r.postscale) && request.round == r.round &&
         request.group_size == group.size && request.group_hash == group.hash &&
         request.group == group.name && same(request.splits, r.splits, r.splits_count) &&
         same(request.weights, r.weights, r.weights_count);
}

Result<SharedRegistration> Find(Runtime& runtime, const horon_request& r, const Group& group) {
  if (r.struct_bytes == sizeof(horon_request) && r.name != nullptr) {
    SharedRegistration known = runtime.registry().Find(r.process_set, r.name);
    if (known && !known->replaced() && IsOf(known->request, r, group)) return known;
  }
  HORON_TRY(CheckTensor(r));
  HORON_TRY(CheckMember(runtime, r.process_set, r.name));
  return runtime.registry().Of(RequestOf(r, group));
}

Result<Submission> MakeSubmission(Runtime& runtime, SharedRegistration what, const void* input,
                                  void* output, void* stream) {
  if (input == nullptr && what->bytes > 0)
    return Status::InvalidArgument("tensor '" + what->request.name + "': input is null");
  HORON_ASSIGN(SharedEvent ready,
               ReadyOn(runtime, what->request.device, stream, "tensor", what->request.name));
  return Submission{std::move(what), static_cast<const std::byte*>(input),
                    static_cast<std::byte*>(output), std::move(ready)};
}

bool AnyReplaced(std::span<const Submission> submissions) {
  return std::any_of(submissions.begin(), submissions.end(),
                     [](const Submission& s) { return s.what->replaced(); });
}

// Two of one name that differ would replace each other for ever.
Status CheckNames(std::span<const Submission> submissions) {
  std::vector<const Registration*> all;
  for (const Submission& s : submissions) all.push_back(s.what.get());
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  const auto twice = std::adjacent_find(
      all.begin(), all.end(), [](const auto* a, const auto* b) { return a->key == b->key; });
  if (twice == all.end()) return Status::Ok();
  return Status::InvalidArgument("two tensors of one call are named '" + (*twice)->request.name +
                                 "': give one of them another name");
}

// `make(i)` gives the i-th submission.
template <typename F>
Result<std::shared_ptr<Work>> SubmitAll(Runtime& runtime, size_t count, bool wake, F&& make) {
  std::shared_ptr<Work> work = MakeWork(static_cast<int>(count));
  if (!wake) work->WillBlock();
  Submission one;
  std::vector<Submission> many(count == 1 ? 0 : count);
  const std::span<Submission> submissions = count == 1 ? std::span(&one, 1) : std::span(many);
  Status status;
  do {  // again if another thread has used one of these names for something else meanwhile
    for (size_t i = 0; i < count; ++i) {
      HORON_ASSIGN(submissions[i], make(i));
    }
    status = runtime.Submit(submissions, work, wake);
    if (!status.ok()) HORON_TRY(CheckNames(submissions));
  } while (!status.ok() && AnyReplaced(submissions));
  HORON_TRY(status);
  return work;
}

// It is this tensor's turn on this thread, in a call of its own.
void Come(const horon_tensor& tensor, const Registration& what) {
  constexpr size_t kCounts = 16;  // of its shared pointers, just before it
  static thread_local Foresight<64, kCounts + sizeof(what), 32> next;
  next.Come({&tensor.stream, reinterpret_cast<const char*>(&what) - kCounts,
             what.request.name.data()});
}

// `name` null: no group.
Result<Group> GroupOf(std::span<const horon_request> requests, const char* name) {
  if (name == nullptr) return Group{};
  if (requests.empty() || *name == '\0')
    return Status::InvalidArgument("a group needs a name and at least one tensor");
  std::string names;
  for (const horon_request& r : requests) {
    names += r.name != nullptr ? r.name : "";
    names += '\n';
  }
  return Group{name, static_cast<int32_t>(requests.size()),
               TensorId(requests[0].process_set, names)};
}

}  // namespace

Device DeviceOf(int ordinal) {
  return ordinal < 0 ? Device{} : Device{DeviceKind::kCuda, ordinal};
}

Result<SharedEvent> ReadyOn(Runtime& runtime, Device device, void* stream,
                            const char* kind, const std::string& name) {
  if (device.kind == DeviceKind::kHost) return SharedEvent();
  const auto record = [&]() -> Result<SharedEvent> {
    HORON_ASSIGN(const std::shared_ptr<Gpu> gpu, runtime.GpuOf(device));
    return gpu->Record(stream);
  };
  Result<SharedEvent> ready = record();
  if (ready.ok()) return ready;
  return Status(ready.status().code(),
                std::string(kind) + " '" + name + "': " + ready.status().message());
}

Result<Request> ReadRequest(const horon_request& r) {
  HORON_TRY(CheckTensor(r));
  return RequestOf(r, {});
}

Result<std::vector<Request>> ReadGroup(std::span<const horon_request> requests, const char* name) {
  HORON_ASSIGN(const Group group, GroupOf(requests, name));
  std::vector<Request> made;
  for (const horon_request& r : requests) {
    HORON_TRY(CheckTensor(r));
    made.push_back(RequestOf(r, group));
  }
  return made;
}

Result<std::shared_ptr<Work>> Submit(Runtime& runtime, std::span<const horon_request> requests,
                                     const char* group_name, bool wake) {
  HORON_ASSIGN(const Group group, GroupOf(requests, group_name));
  return SubmitAll(runtime, requests.size(), wake, [&](size_t i) -> Result<Submission> {
    HORON_ASSIGN(SharedRegistration what, Find(runtime, requests[i], group));
    return MakeSubmission(runtime, std::move(what), requests[i].input, requests[i].output,
                          requests[i].stream);
  });
}

Result<std::shared_ptr<Work>> Start(Runtime& runtime, std::span<horon_tensor* const> tensors,
                                    const void* const* inputs, void* const* outputs, bool wake) {
  if (tensors.empty()) return Status::InvalidArgument("there is no tensor to start");
  return SubmitAll(runtime, tensors.size(), wake, [&](size_t i) -> Result<Submission> {
    HORON_ASSIGN(SharedRegistration what, tensors[i]->With(runtime));
    if (tensors.size() == 1) Come(*tensors[i], *what);
    return MakeSubmission(runtime, std::move(what), inputs[i], outputs[i], tensors[i]->stream);
  });
}

Status StartInto(Runtime& runtime, horon_tensor& tensor, const void* input, void* output,
                 const std::shared_ptr<Work>& work) {
  if (!work->open())
    return Status::InvalidArgument("a tensor cannot be added to a work that is complete");
  if (output == nullptr || tensor.request.device.kind != DeviceKind::kHost)
    return Status::InvalidArgument(
        "tensor '" + tensor.request.name +
        "': a work that others join later takes tensors on the host, with outputs");
  Submission one;
  Status status;
  do {
    HORON_ASSIGN(SharedRegistration what, tensor.With(runtime));
    Come(tensor, *what);
    if (!what->op->fills_output())
      return Status::InvalidArgument("Op '" + what->request.op + "' for tensor '" +
                                     what->request.name +
                                     "' makes an output of its own, which a work that others join "
                                     "later cannot hold");
    HORON_ASSIGN(one, MakeSubmission(runtime, std::move(what), input, output, tensor.stream));
    status = runtime.Submit({&one, 1}, work, true);
  } while (!status.ok() && one.what->replaced());
  return status;
}

}  // namespace horon

using namespace horon;  // NOLINT: what follows is C's

// An earlier runtime has declared its registrations replaced when it shut down.
Result<SharedRegistration> horon_tensor::With(Runtime& runtime) {
  MutexLock lock(mutex);
  if (what && !what->replaced()) return what;
  HORON_TRY(CheckMember(runtime, request.process_set, request.name));
  HORON_ASSIGN(what, runtime.registry().Of(request));
  return what;
}
