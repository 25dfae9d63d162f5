// GpuTransport: a transport whose messages a fake GPU notices, which complains of those that lie in
// memory that its streams have not done with.
#pragma once

#include <memory>
#include <utility>

#include "test/support/fake_gpu.h"
#include "test/support/wrapped_transport.h"

namespace horon::test {

class GpuTransport final : public WrappedTransport {
 public:
  // `direct`: messages may lie in the GPU's memory, as those of an MPI that reads it.
  GpuTransport(std::unique_ptr<Transport> inner, FakeGpu& gpu, bool direct)
      : WrappedTransport(std::move(inner)), gpu_(gpu), direct_(direct) {}
  bool reads_gpus() const override { return direct_; }
  Status Post(Transfer& transfer) override {
    for (Span& span : transfer.spans) {
      gpu_.Touch(span, transfer.direction == Transfer::Direction::kReceive);
      if (direct_) span.data = gpu_.Inside(span.data);
    }
    return WrappedTransport::Post(transfer);
  }

 private:
  FakeGpu& gpu_;
  const bool direct_;
};

}  // namespace horon::test
