// A libhoron_cuda.so whose GPUs are fake ones (fake_cuda.h).
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "test/support/fake_cuda.h"
#include "test/support/fake_gpu.h"

namespace horon::test {
namespace {

// An NCCL whose ranks never come together.
class LonelyNetwork final : public GpuNetwork {
 public:
  LonelyNetwork(FakeGpu& gpu, const FoundLibrary& nccl) : gpu_(gpu), nccl_(nccl) {}
  int version() const override { return nccl_.version; }
  Result<GpuGroupId> MakeId() override { return GpuGroupId{}; }
  Result<std::unique_ptr<GpuGroup>> Connect(const GpuGroupId&, int size, int, Device,
                                            const GpuGroupOptions& options) override {
    return Status::Unavailable(
        "a group of " + std::to_string(size) + ": " + std::to_string(options.timeout.count()) +
        " ms, " + std::to_string(options.max_ctas) + " blocks, registered " +
        std::to_string(static_cast<int>(options.registration)));
  }
  MemoryRegistration registration() const override { return MemoryRegistration::kTogether; }
  std::unique_ptr<Memory> MakeMemory(Device) override { return gpu_.MakeMemory(); }

 private:
  FakeGpu& gpu_;
  const FoundLibrary& nccl_;
};

class FakeDriver final : public GpuDriver {
 public:
  // Never destroyed: streams may be at work when the process ends.
  static FakeDriver& Get() {
    static FakeDriver* const driver = new FakeDriver;
    return *driver;
  }
  int devices() const override { return 2; }
  std::string version() const override { return "fake driver"; }
  const FoundLibrary& nccl() const override { return nccl_; }
  const FoundLibrary& cublas() const override { return cublas_; }
  Result<std::shared_ptr<Gpu>> Open(int index) override {
    return std::shared_ptr<Gpu>(index == 0 ? gpu_ : second_);
  }
  GpuNetwork* network() override { return nccl_.version == 0 ? nullptr : &network_; }

  FakeGpu& gpu() { return *gpu_; }
  const char* Complaint() {
    std::lock_guard lock(mutex_);
    const std::vector<std::string> all = gpu_->complaints();
    last_ = told_ < all.size() ? all[told_] : "";
    told_ = all.size();
    return last_.c_str();
  }

 private:
  FakeDriver() {
    const char* const version = std::getenv(kFakeNcclVariable);
    nccl_ = {version != nullptr ? std::atoi(version) : 0, "no NCCL with a fake driver"};
    cublas_.text = "no cuBLAS with a fake driver";
  }

  const std::shared_ptr<FakeGpu> gpu_ = std::make_shared<FakeGpu>(0);
  const std::shared_ptr<FakeGpu> second_ = std::make_shared<FakeGpu>(1);
  FoundLibrary nccl_, cublas_;
  LonelyNetwork network_{*gpu_, nccl_};
  std::mutex mutex_;
  size_t told_ = 0;
  std::string last_;
};

FakeGpu& TheGpu() { return FakeDriver::Get().gpu(); }

Span At(const void* data, int64_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), bytes};
}

void Write(void* stream, void* to, const void* from, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(from);
  auto values = std::make_shared<std::vector<std::byte>>(first, first + bytes);
  FakeGpu& gpu = TheGpu();
  std::byte* const inside = gpu.Inside(At(to, bytes).data);
  gpu.Framework(stream).Enqueue("a test's copy", {}, {At(to, bytes)}, [values, inside] {
    if (!values->empty()) std::memcpy(inside, values->data(), values->size());
  });
}

void Read(void* stream, void* to, const void* from, int64_t bytes) {
  FakeGpu& gpu = TheGpu();
  const std::byte* const inside = gpu.Inside(At(from, bytes).data);
  gpu.Framework(stream).Enqueue("a test's copy", {At(from, bytes)}, {}, [=] {
    if (bytes > 0) std::memcpy(to, inside, static_cast<size_t>(bytes));
  });
  gpu.Framework(stream).Finish();
}

constexpr FakeCuda kFakeCuda = {
    .memory = [](int64_t bytes) -> void* { return TheGpu().Take(bytes); },
    .stream = []() -> void* { return (new FakeStream(TheGpu()))->native(); },
    .write = Write,
    .read = Read,
    .hold = [](void* stream) { TheGpu().Framework(stream).Hold(); },
    .release = [](void* stream) { TheGpu().Framework(stream).Release(); },
    .capture = [](void* stream, int on) { TheGpu().Framework(stream).captured = on != 0; },
    .lose = [](const char* why) { TheGpu().Lose(Status::Unavailable(why)); },
    .complaint = [] { return FakeDriver::Get().Complaint(); },
};

}  // namespace
}  // namespace horon::test

#define HORON_PLUGIN_ENTRY __attribute__((visibility("default")))

extern "C" {

HORON_PLUGIN_ENTRY int horon_cuda_version() { return horon::kCudaPluginVersion; }

HORON_PLUGIN_ENTRY horon::GpuDriver* horon_cuda_open(horon::Status*,
                                                     const horon::GpuLibraryPaths*) {
  return &horon::test::FakeDriver::Get();
}

HORON_PLUGIN_ENTRY const FakeCuda* horon_fake_cuda() { return &horon::test::kFakeCuda; }
}
