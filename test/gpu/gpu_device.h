// The GPU that the tests of kernels run on, opened through the plugin as a job does it.
#pragma once

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/gpu_plugin.h"
#include "test/support/catch.h"
#include "test/support/reference.h"

namespace horon::test {

// Set by main before the tests run.
inline std::shared_ptr<Gpu> the_gpu;

// Memory of the device that holds `bytes`, `shift` bytes behind an aligned address, and copies
// back.
class OnDevice {
 public:
  OnDevice(Stream& stream, const Bytes& bytes, int64_t shift = 0)
      : stream_(stream), size_(static_cast<int64_t>(bytes.size())), shift_(shift) {
    device_ = the_gpu->MakeMemory();
    pinned_ = the_gpu->MakePinnedMemory();
    at_ = device_->Allocate(size_ + shift + kGuard).value();
    host_ = pinned_->Allocate(size_ + kGuard).value();
    if (!bytes.empty()) std::memcpy(host_, bytes.data(), bytes.size());
    std::memset(host_ + size_, kPaint, kGuard);
    REQUIRE(stream.Copy(data(), host_, size_ + kGuard).ok());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    Wait(stream_);
    device_->Free(at_, size_ + shift_ + kGuard);
    pinned_->Free(host_, size_ + kGuard);
  }
  std::byte* data() const { return at_ + shift_; }
  // What it holds now. What lies behind it must be untouched.
  Bytes Get() {
    REQUIRE(stream_.Copy(host_, data(), size_ + kGuard).ok());
    Wait(stream_);
    for (int64_t i = 0; i < kGuard; ++i) REQUIRE(host_[size_ + i] == std::byte{kPaint});
    return {host_, host_ + size_};
  }
  static void Wait(Stream& stream) {
    const SharedEvent event = stream.Record().value();
    while (!event->Done().value()) std::this_thread::yield();
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr int kPaint = 0x5a;
  Stream& stream_;
  int64_t size_, shift_;
  std::unique_ptr<Memory> device_, pinned_;
  std::byte *at_, *host_;
};

}  // namespace horon::test
