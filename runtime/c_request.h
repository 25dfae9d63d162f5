// Requests as the C API takes them: checked, made into entries, and handed to the runtime.
// Everything that a caller may get wrong about one tensor is refused here, before it is queued.
// Called by c_api.cc, on the user's thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/core/runtime.h"
#include "runtime/include/horon/horon.h"

// A registered tensor: its request, and its registration with the runtime that it was last used in.
struct horon_tensor {
  horon_tensor(horon::Request of, void* on) : request(std::move(of)), stream(on) {}
  horon::Result<horon::SharedRegistration> With(horon::Runtime& runtime);

  const horon::Request request;
  void* const stream;  // of a GPU
  horon::Mutex mutex;
  horon::SharedRegistration what HORON_GUARDED_BY(mutex);
};

namespace horon {

// As callers name it: -1 is the host.
Device DeviceOf(int ordinal);
// When memory of a GPU may be read: after what its stream has been given so far. Null on the host.
// `kind` and `name`: whose memory it is, for an error.
Result<SharedEvent> ReadyOn(Runtime& runtime, Device device, void* stream,
                            const char* kind, const std::string& name);

// Enqueues all of `requests` under one work, or none: kInvalidArgument, kUnsupported with the
// tensor's name, or why the runtime takes nothing. `group` may be null: tensors on their own.
// `wake` as in Runtime::Submit. Does not wait.
Result<std::shared_ptr<Work>> Submit(Runtime& runtime, std::span<const horon_request> requests,
                                     const char* group, bool wake);

// The request alone, checked as far as it can be without a runtime.
Result<Request> ReadRequest(const horon_request& request);
// The requests of a group of this name.
Result<std::vector<Request>> ReadGroup(std::span<const horon_request> requests, const char* name);
// Submit of registered tensors, each on its own.
Result<std::shared_ptr<Work>> Start(Runtime& runtime, std::span<horon_tensor* const> tensors,
                                    const void* const* inputs, void* const* outputs, bool wake);
// One more tensor of a work that gathers.
Status StartInto(Runtime& runtime, horon_tensor& tensor, const void* input, void* output,
                 const std::shared_ptr<Work>& work);

}  // namespace horon
