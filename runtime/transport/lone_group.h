// LoneGroup: the group of one rank. What it would get from others is its own, or nothing.
#pragma once

#include "runtime/transport/gpu_group.h"

namespace horon {

class LoneGroup final : public GpuGroup {
 public:
  Result<bool> Ready() override { return true; }
  Status Check() override { return Status::Ok(); }
  void Abort() override {}
  void Leave() override {}
  bool gone() const override { return true; }
  bool stuck() const override { return false; }
  Status Register(const Span&) override { return Status::Ok(); }
  Status Deregister(const std::byte*) override { return Status::Ok(); }
  Result<MemoryRegistration> RegisterTogether(const Span&) override {
    return MemoryRegistration::kEach;
  }
  Status Allreduce(DataType, ReduceKind, std::byte*, int64_t, Stream&) override {
    return Status::Ok();
  }
  Status ReduceScatter(DataType dtype, ReduceKind, const std::byte* block, std::byte* out,
                       int64_t count, Stream& stream) override {
    return Take(block, out, count * SizeOf(dtype), stream);
  }
  Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                   Stream& stream) override {
    return Take(part, block, bytes, stream);
  }
  Status Broadcast(std::span<const Span>, int, Stream&) override { return Status::Ok(); }
  Status Exchange(std::span<const Span> send, std::span<const Span> recv, Stream& stream) override {
    for (size_t i = 0; i < send.size(); ++i)
      HORON_TRY(Take(send[i].data, recv[i].data, send[i].bytes, stream));
    return Status::Ok();
  }
  bool Reduces(DataType) const override { return true; }

 private:
  static Status Take(const std::byte* from, std::byte* to, int64_t bytes, Stream& stream) {
    return from == to || bytes == 0 ? Status::Ok() : stream.Copy(to, from, bytes);
  }
};

}  // namespace horon
