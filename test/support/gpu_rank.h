// GpuRank: a rank of a World with a fake GPU, as a framework uses it: kernels on a stream of its
// own make the inputs and read the outputs, and only events stand between them and the runtime's
// work.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/support/fake_gpu.h"
#include "test/support/reference.h"
#include "test/support/world.h"

namespace horon::test {

class GpuRank {
 public:
  GpuRank(Rank& me, FakeGpu& gpu) : me_(me), gpu_(gpu), stream_(gpu) {}
  Rank& me() { return me_; }
  FakeGpu& gpu() { return gpu_; }
  FakeStream& stream() { return stream_; }

  static Request Of(const std::string& name, const std::string& op, DataType dtype, Shape shape) {
    Request request;
    request.name = name;
    request.op = op;
    request.dtype = dtype;
    request.device = {DeviceKind::kCuda, 0};
    request.shape = std::move(shape);
    return request;
  }

  // A tensor of the device that a kernel of this stream fills.
  std::byte* Put(const Bytes& bytes) {
    std::byte* const at = gpu_.Take(static_cast<int64_t>(bytes.size()));
    const Span span{at, static_cast<int64_t>(bytes.size())};
    stream_.Enqueue("the user's kernel", {}, {span}, [bytes, inside = gpu_.Inside(at)] {
      if (!bytes.empty()) std::memcpy(inside, bytes.data(), bytes.size());
    });
    return at;
  }
  // What a kernel of this stream reads. Waits for it.
  Bytes Get(const std::byte* at, int64_t count) {
    Bytes bytes(static_cast<size_t>(count));
    Read(at, bytes);
    stream_.Finish();
    return bytes;
  }
  // The same without waiting.
  void Read(const std::byte* at, Bytes& into) {
    const auto size = static_cast<int64_t>(into.size());
    stream_.Enqueue("the user's reading", {{const_cast<std::byte*>(at), size}}, {},
                    [&into, inside = gpu_.Inside(at)] {
                      if (!into.empty()) std::memcpy(into.data(), inside, into.size());
                    });
  }

  // `blocks`: as a call begins that waits at once.
  Result<std::shared_ptr<Work>> Submit(Request request, const std::byte* input, std::byte* output,
                                       bool blocks = false) {
    HORON_ASSIGN(Submission one, Make(std::move(request), input, output));
    auto work = std::make_shared<Work>(1);
    if (blocks) work->WillBlock();
    HORON_TRY(me_.runtime().Submit({&one, 1}, work, !blocks));
    return HandleOf(std::move(work));
  }
  // Tensors (floats) that are each their own output, in one bucket where it holds them.
  Result<std::shared_ptr<Work>> SubmitTogether(const std::string& group, const std::string& op,
                                               const std::vector<std::byte*>& tensors,
                                               int64_t count) {
    return SubmitTogether(group, op, tensors, std::vector<int64_t>(tensors.size(), count),
                          DataType::kFloat32);
  }
  Result<std::shared_ptr<Work>> SubmitTogether(const std::string& group, const std::string& op,
                                               const std::vector<std::byte*>& tensors,
                                               const std::vector<int64_t>& counts,
                                               DataType dtype, int process_set = 0) {
    std::vector<Shape> shapes;
    for (const int64_t count : counts) shapes.push_back({count});
    return SubmitGroup(group, op, tensors, tensors, shapes, dtype, process_set);
  }
  // Tensors whose outputs the work owns, in one bucket where it holds them.
  Result<std::shared_ptr<Work>> GatherTogether(const std::string& group, const std::string& op,
                                               const std::vector<std::byte*>& tensors,
                                               const std::vector<Shape>& shapes, DataType dtype) {
    const std::vector<std::byte*> owned(tensors.size(), nullptr);
    HORON_ASSIGN(auto work, SubmitGroup(group, op, tensors, owned, shapes, dtype, 0));
    return HandleOf(std::move(work));
  }
  // As synchronize does: this stream waits, not the caller.
  Status Synchronize(Work& work) {
    HORON_TRY(me_.Wait(work));
    return work.HoldBack(&stream_);
  }
  // Of an op that makes its own output: what a kernel behind it reads there.
  Result<Bytes> RunOwned(const Request& request, const Bytes& input) {
    HORON_ASSIGN(const auto work, Submit(request, Put(input), nullptr));
    HORON_TRY(Synchronize(*work));
    const Output& output = work->outputs()[0];
    return Get(output.data, CountOf(output.shape()) * SizeOf(request.dtype));
  }

 private:
  // Like the C API's: its last reference drops the outputs while the stream is there.
  static std::shared_ptr<Work> HandleOf(std::shared_ptr<Work> work) {
    Work* const plain = work.get();
    return std::shared_ptr<Work>(plain, [work = std::move(work)](Work* dropped) {
      if (dropped->done()) dropped->DropOutputs();
    });
  }
  Result<std::shared_ptr<Work>> SubmitGroup(const std::string& group, const std::string& op,
                                            const std::vector<std::byte*>& inputs,
                                            const std::vector<std::byte*>& outputs,
                                            const std::vector<Shape>& shapes, DataType dtype,
                                            int process_set) {
    std::vector<Submission> all;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Request request = Of(group + std::to_string(i), op, dtype, shapes[i]);
      request.process_set = process_set;
      request.group = group;
      request.group_size = static_cast<int32_t>(inputs.size());
      HORON_ASSIGN(Submission one, Make(std::move(request), inputs[i], outputs[i]));
      all.push_back(std::move(one));
    }
    auto work = std::make_shared<Work>(static_cast<int>(all.size()));
    HORON_TRY(me_.runtime().Submit(all, work, true));
    return work;
  }
  Result<Submission> Make(Request request, const std::byte* input, std::byte* output) {
    HORON_TRY(me_.runtime().GpuOf(request.device).status());
    HORON_ASSIGN(SharedEvent ready, gpu_.Record(&stream_));
    HORON_ASSIGN(SharedRegistration what, me_.runtime().registry().Of(std::move(request)));
    return Submission{std::move(what), input, output, std::move(ready)};
  }

  Rank& me_;
  FakeGpu& gpu_;
  FakeStream stream_;
};

}  // namespace horon::test
