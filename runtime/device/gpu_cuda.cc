#include "runtime/device/gpu_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/device/cublas_pairs.h"
#include "runtime/device/kernels_cuda.h"

namespace horon::cuda {
namespace {

constexpr int kLeastMajor = 8;  // what CMakeLists.txt builds kernels for begins there

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(int index) : index_(index) {}
  Device device() const override { return {DeviceKind::kCuda, index_}; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    const OnDevice current(index_);
    void* data = nullptr;
    HORON_TRY(Check(cudaMalloc(&data, static_cast<size_t>(bytes)), "allocate memory", index_));
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t) override {
    const OnDevice current(index_);
    cudaFree(data);  // at the end of the process the driver may be gone, and the memory with it
  }

 private:
  int index_;
};

class PinnedMemory final : public Memory {
 public:
  explicit PinnedMemory(int index) : index_(index) {}
  Device device() const override { return {}; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    const OnDevice current(index_);
    void* data = nullptr;
    HORON_TRY(Check(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable),
                    "allocate pinned host memory", index_));
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t) override {
    const OnDevice current(index_);
    cudaFreeHost(data);
  }

 private:
  int index_;
};

Status Captured() {
  return Status::Unsupported(
      "its stream is being captured into a CUDA graph, and a collective cannot be part of one: "
      "call Horon outside of the capture");
}

// An error if the stream is being captured; to go on would break the capture off.
Status RefuseCaptured(cudaStream_t stream, int index) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &capturing);
  // The legacy default stream may not be asked while a stream that it waits for is captured.
  if (asked == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return Captured();
  }
  HORON_TRY(Check(asked, "ask a stream", index));
  return capturing == cudaStreamCaptureStatusNone ? Status::Ok() : Captured();
}

// Events that are used again: making one costs more than recording it.
class Events {
 public:
  explicit Events(int index) : index_(index) {}
  ~Events() {
    const OnDevice current(index_);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  Result<cudaEvent_t> Take() {
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    HORON_TRY(
        Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event", index_));
    return event;
  }
  void Give(cudaEvent_t event) {
    MutexLock lock(mutex_);
    free_.push_back(event);
  }
  uint64_t Tick() { return ++clock_; }
  int index() const { return index_; }

 private:
  const int index_;
  Mutex mutex_;
  std::vector<cudaEvent_t> free_ HORON_GUARDED_BY(mutex_);
  std::atomic<uint64_t> clock_{0};
};

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<Events> from, cudaEvent_t event)
      : from_(std::move(from)), event_(event) {}
  ~CudaEvent() override { from_->Give(event_); }
  Result<bool> Done() override {
    const OnDevice current(from_->index());
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    HORON_TRY(Check(state, "finish what was enqueued", from_->index()));
    return true;
  }
  Status HoldBack(void* on) override {
    const OnDevice current(from_->index());
    auto* const other = static_cast<cudaStream_t>(on);
    HORON_TRY(RefuseCaptured(other, from_->index()));
    return Check(cudaStreamWaitEvent(other, event_, 0), "make a stream wait", from_->index());
  }

 private:
  std::shared_ptr<Events> from_;
  cudaEvent_t event_;
};

Result<SharedEvent> RecordOn(const std::shared_ptr<Events>& events, void* stream) {
  HORON_ASSIGN(const cudaEvent_t event, events->Take());
  auto made = std::make_shared<CudaEvent>(events, event);
  made->stream = stream;
  made->one_stream = stream != cudaStreamPerThread;
  made->begun = events->Tick();
  HORON_TRY(Check(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), "record an event",
                  events->index()));
  made->over = events->Tick();
  return SharedEvent(std::move(made));
}

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<Events> events, cudaStream_t stream, bool own, bool early,
             const CublasLibrary& cublas, PairKernels pairs)
      : events_(std::move(events)),
        stream_(stream),
        own_(own),
        early_(early),
        device_(events_->index()),
        cublas_(cublas),
        pairs_(pairs) {}
  ~CudaStream() override {
    if (!own_) return;
    const OnDevice current(device_);
    cudaStreamSynchronize(stream_);
    by_cublas_.reset();
    for (std::byte* room : rooms_) cudaFree(room);
    cudaStreamDestroy(stream_);
  }
  void* native() const override { return stream_; }
  Result<SharedEvent> Record() override {
    const OnDevice current(device_);
    return RecordOn(events_, stream_);
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (bytes == 0 || to == from) return Status::Ok();
    const OnDevice current(device_);
    return Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
                 "copy memory", device_);
  }
  Status Zero(std::byte* to, int64_t bytes) override {
    if (bytes == 0) return Status::Ok();
    const OnDevice current(device_);
    return Check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "clear memory",
                 device_);
  }
  Status Move(DataType from, DataType to, double scale, std::span<const Piece> pieces) override {
    const OnDevice current(device_);
    return Check(cuda::Move(from, to, scale, pieces, stream_), "move tensors", device_);
  }
  Status Reduce(ReduceKind kind, DataType dtype, double scale,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override {
    const OnDevice current(device_);
    return Check(cuda::Reduce(kind, dtype, scale, inputs, out, count, stream_), "reduce tensors",
                 device_);
  }
  Status Dot(DataType dtype, std::span<const Pair> pairs, Dots* sums) override {
    const OnDevice current(device_);
    if (pairs_ == PairKernels::kCublas) {
      HORON_TRY(OpenCublasPairs());
      HORON_TRY(Reserve(CublasPairs::RoomFor(pairs)));
      return by_cublas_->Dot(dtype, pairs, room(), sums);
    }
    HORON_TRY(Reserve(PartialsFor(pairs) * static_cast<int64_t>(sizeof(Dots))));
    auto* const partials = reinterpret_cast<Dots*>(room());
    return Check(cuda::Dot(dtype, pairs, partials, sums, early_, stream_), "multiply tensors",
                 device_);
  }
  Status Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
               Coefficients* out) override {
    const OnDevice current(device_);
    return Check(cuda::Weigh(how, parts, rows, tensors, out, stream_), "weigh tensors", device_);
  }
  Status Combine(DataType dtype, std::span<const Pair> pairs) override {
    const OnDevice current(device_);
    if (pairs_ == PairKernels::kCublas) {
      HORON_TRY(OpenCublasPairs());
      HORON_TRY(Reserve(CublasPairs::RoomFor(pairs)));
      return by_cublas_->Combine(dtype, pairs, room());
    }
    return Check(cuda::Combine(dtype, pairs, stream_), "combine tensors", device_);
  }
  Status Multiply(const MatrixProduct& product) override {
    const OnDevice current(device_);
    HORON_TRY(OpenCublasPairs());
    return by_cublas_->Multiply(product);
  }
  Status Mix(DataType dtype, std::span<const double> weights,
             std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override {
    const OnDevice current(device_);
    return Check(cuda::Mix(dtype, weights, inputs, out, count, stream_), "mix tensors", device_);
  }

 private:
  // What is outgrown is kept: cudaFree would wait for the device, which may wait for a peer. Twice
  // as much each time, so all together is less than twice the last; a bucket needs little.
  Status Reserve(int64_t bytes) {
    if (bytes <= reserved_) return Status::Ok();
    const int64_t more = std::max(bytes, 2 * reserved_);
    void* data = nullptr;
    HORON_TRY(Check(cudaMalloc(&data, static_cast<size_t>(more)), "allocate memory", device_));
    rooms_.push_back(static_cast<std::byte*>(data));
    reserved_ = more;
    return Status::Ok();
  }
  std::byte* room() const { return rooms_.empty() ? nullptr : rooms_.back(); }
  // When it is first used: it takes memory of its own, and some time.
  Status OpenCublasPairs() {
    if (by_cublas_) return Status::Ok();
    HORON_ASSIGN(by_cublas_, CublasPairs::Make(cublas_, *this));
    return Status::Ok();
  }

  std::shared_ptr<Events> events_;
  cudaStream_t stream_;
  const bool own_, early_;
  int device_;
  const CublasLibrary& cublas_;
  PairKernels pairs_;
  std::unique_ptr<CublasPairs> by_cublas_;
  std::vector<std::byte*> rooms_;  // for Dot and Combine; the last one is used
  int64_t reserved_ = 0;           // bytes of that
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(int index, const cudaDeviceProp& properties, bool early, const CublasLibrary& cublas)
      : index_(index),
        name_(properties.name),
        early_(early),
        cublas_(cublas),
        events_(std::make_shared<Events>(index)) {
    static_assert(sizeof identity_ == sizeof properties.uuid.bytes);
    std::memcpy(identity_.data(), properties.uuid.bytes, sizeof identity_);
  }
  Device device() const override { return {DeviceKind::kCuda, index_}; }
  std::string name() const override { return name_; }
  GpuIdentity identity() const override { return identity_; }
  std::unique_ptr<Memory> MakeMemory() override { return std::make_unique<DeviceMemory>(index_); }
  std::unique_ptr<Memory> MakePinnedMemory() override {
    return std::make_unique<PinnedMemory>(index_);
  }
  // Before the framework's kernels, where the device has to choose: peers wait for these.
  Result<std::unique_ptr<Stream>> MakeStream(PairKernels pairs) override {
    if (pairs == PairKernels::kCublas && !cublas_.ok())
      return Status::Unsupported("there is no cuBLAS: " + cublas_.found.text);
    const OnDevice current(index_);
    int least = 0, greatest = 0;
    HORON_TRY(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "make a stream", index_));
    cudaStream_t stream = nullptr;
    HORON_TRY(Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                    "make a stream", index_));
    return std::unique_ptr<Stream>(
        std::make_unique<CudaStream>(events_, stream, true, early_, cublas_, pairs));
  }
  // cudaStreamPerThread is another stream on each thread, under one name.
  std::shared_ptr<Stream> Borrow(void* framework_stream) override {
    if (framework_stream == cudaStreamPerThread) return nullptr;
    return std::make_shared<CudaStream>(events_, static_cast<cudaStream_t>(framework_stream), false,
                                        early_, cublas_, PairKernels::kFused);
  }
  Status Attach() override {
    if (HasContext()) return Status::Ok();
    return Check(cudaSetDevice(index_), "be used on a thread", index_);
  }
  Result<SharedEvent> Record(void* framework_stream) override {
    const OnDevice current(index_);
    HORON_TRY(RefuseCaptured(static_cast<cudaStream_t>(framework_stream), index_));
    return RecordOn(events_, framework_stream);
  }
  // The legacy stream waits for those of all threads.
  Result<SharedEvent> RecordOfAnyThread(void* framework_stream) override {
    return Record(framework_stream == cudaStreamPerThread ? cudaStreamLegacy : framework_stream);
  }

 private:
  int index_;
  std::string name_;
  GpuIdentity identity_{};
  const bool early_;
  const CublasLibrary& cublas_;
  std::shared_ptr<Events> events_;
};

// "GPU 0 (NVIDIA A100) has compute capability 8.0"
std::string Describe(int index, const cudaDeviceProp& properties) {
  return "GPU " + std::to_string(index) + " (" + properties.name + ") has compute capability " +
         std::to_string(properties.major) + "." + std::to_string(properties.minor);
}

// All of them now, some milliseconds, and not each with its first launch.
Status LoadKernels(int index, const cudaDeviceProp& properties) {
  const OnDevice current(index);
  for (auto* const load : {LoadMoves, LoadReductions, LoadPairs}) {
    const cudaError_t error = load();
    // The second is what cudaFuncGetAttributes is documented to give where no image fits.
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
      cudaGetLastError();
      return Status::Unsupported(Describe(index, properties) +
                                 ", which this build of Horon has no kernels for: build it with "
                                 "CUDAARCHS=" +
                                 std::to_string(10 * properties.major + properties.minor));
    }
    HORON_TRY(Check(error, "load kernels", index));
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<Gpu>> OpenGpu(int index, const CublasLibrary& cublas) {
  cudaDeviceProp properties{};
  HORON_TRY(Check(cudaGetDeviceProperties(&properties, index), "be asked about it", index));
  if (properties.major < kLeastMajor) {
    return Status::Unsupported(Describe(index, properties) + "; Horon's kernels need " +
                               std::to_string(kLeastMajor) +
                               ".0 (A100 and newer): reduce copies on the CPU");
  }
  HORON_TRY(BeginContext(index));
  HORON_TRY(LoadKernels(index, properties));
  const OnDevice current(index);
  return std::shared_ptr<Gpu>(
      std::make_shared<CudaGpu>(index, properties, AddsTilesEarly(), cublas));
}

}  // namespace horon::cuda
