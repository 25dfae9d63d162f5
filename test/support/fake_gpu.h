// FakeGpu: a GPU on host memory, for tests of everything above the kernels.
//
// Each stream runs its work in order on a thread of its own, so what is enqueued happens later, and
// at the same time as other streams' work. Three mistakes show:
//  - the host looks into device memory: that memory is not readable at the addresses it is given;
//  - work reads or writes what other work has not been ordered after by an event: found when it is
//    enqueued, from what each stream and the host know to have happened, whatever the timing; so
//    does a message, in pinned memory, too (gpu_transport.h);
//  - ranks call different collectives of a group: found when they meet.
// What was found is in complaints(). Streams may be held, so that a test sees who waits for them,
// and the device may be lost.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/gpu_driver.h"
#include "runtime/transport/gpus.h"

namespace horon::test {

class FakeStream;

// What is known to have happened: by stream, how many of its pieces of work.
using Clock = std::map<int, uint64_t>;

class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(int index = 0);
  ~FakeGpu() override;
  Device device() const override { return {DeviceKind::kCuda, index_}; }
  std::string name() const override { return "fake"; }
  GpuIdentity identity() const override;
  void BeThe(const FakeGpu& other) { twin_ = &other; }  // two ranks use one GPU
  std::unique_ptr<Memory> MakeMemory() override;
  std::unique_ptr<Memory> MakePinnedMemory() override;
  Result<std::unique_ptr<Stream>> MakeStream(PairKernels pairs) override;
  std::shared_ptr<Stream> Borrow(void* framework_stream) override;
  Status Attach() override { return Status::Ok(); }
  Result<SharedEvent> Record(void* framework_stream) override;
  Result<SharedEvent> RecordOfAnyThread(void* framework_stream) override {
    return Record(framework_stream);
  }

  // A framework's stream, as it was handed over; null: the default stream.
  FakeStream& Framework(void* stream);
  // Memory of the device for a test's tensor; lives as long as the GPU. Not readable by the host.
  std::byte* Take(int64_t bytes);
  int64_t taken() const;  // bytes of it, by tests and pools; none is given back
  int64_t pinned() const;
  // Where that memory can be read and written: for work on streams alone.
  std::byte* Inside(std::byte* device) const;
  const std::byte* Inside(const std::byte* device) const {
    return Inside(const_cast<std::byte*>(device));
  }
  // The host reads or writes there, as a message does. Of this memory, and of pinned memory, it
  // complains unless the host has seen all work done that this depends on.
  void Touch(const Span& span, bool writes);
  bool Rests() const;  // whether all streams have done all
  void Complain(const std::string& what);
  std::vector<std::string> complaints() const;
  // From now on streams do nothing and are not held, and whoever enqueues, records, allocates or
  // asks an event gets this: CUDA's errors of a lost device stay.
  void Lose(Status why);
  Status state() const;  // why it is lost

 private:
  friend class FakeStream;
  friend class FakeEvent;
  friend class FakePinnedMemory;
  struct Access {
    const std::byte *begin, *end;
    int stream;
    uint64_t number;
    bool writes;
  };
  // Notes a piece of work. Complains, and gives false, when it is not ordered after what it depends
  // on: it must not be done, for it would be a race in this process, too.
  bool Note(FakeStream& stream, const std::string& what, const std::vector<Span>& reads,
            const std::vector<Span>& writes);
  bool Knows(const Span& span) const;
  void Check(const Clock& known, const std::string& what, const Span& span, int stream,
             bool writes);

  const int index_;
  const FakeGpu* twin_ = nullptr;
  std::byte *outside_, *inside_;
  std::once_flag default_made_;
  std::unique_ptr<FakeStream> default_;
  mutable std::mutex mutex_;  // guards all below, and the clocks of streams and events
  int64_t taken_ = 0;
  int streams_ = 0;
  std::set<FakeStream*> open_;  // those there are
  Status state_;
  uint64_t events_ = 0;
  Clock host_;  // what the host has seen done
  std::map<const std::byte*, int64_t> pinned_;  // bytes of it, by where they begin
  std::vector<Access> accesses_;
  std::vector<std::string> complaints_;
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(FakeGpu& gpu);
  ~FakeStream() override;
  void* native() const override { return const_cast<FakeStream*>(this); }
  Result<SharedEvent> Record() override;
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  Status Zero(std::byte* to, int64_t bytes) override;
  Status Move(DataType from, DataType to, double scale, std::span<const Piece> pieces) override;
  Status Reduce(ReduceKind kind, DataType dtype, double scale,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override;
  Status Dot(DataType dtype, std::span<const Pair> pairs, Dots* sums) override;
  Status Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
               Coefficients* out) override;
  Status Combine(DataType dtype, std::span<const Pair> pairs) override;
  Status Mix(DataType dtype, std::span<const double> weights,
             std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override;

  Status Multiply(const MatrixProduct&) override { return Status::Unsupported("no cuBLAS here"); }

  // Any work that reads and writes these spans. Nothing happens where the device is lost.
  void Enqueue(const std::string& what, const std::vector<Span>& reads,
               const std::vector<Span>& writes, std::function<void()> work);
  void Finish();  // waits for all of it: what a test does, and the runtime never
  void Hold();    // nothing is begun until Release
  void Release();
  FakeGpu& gpu() { return gpu_; }
  // Into a graph: no event is recorded on it for the runtime, and it does not wait for one.
  std::atomic<bool> captured = false;

 private:
  friend class FakeGpu;
  friend class FakeEvent;
  struct Queue;
  // The same as a call of the runtime's.
  Status Start(const std::string& what, const std::vector<Span>& reads,
               const std::vector<Span>& writes, std::function<void()> work);
  FakeGpu& gpu_;
  int id_;
  uint64_t number_ = 0;  // pieces of work so far
  Clock known_;          // guarded by gpu_.mutex_
  std::unique_ptr<Queue> queue_;
};

// NCCL between the ranks of one process.
class FakeNetwork final : public GpuNetwork {
 public:
  struct Room;
  struct Rooms {
    std::mutex mutex;
    std::map<int, std::shared_ptr<Room>> by_number;
    int next = 1;
  };
  // `rooms` are shared by all ranks.
  FakeNetwork(std::shared_ptr<Rooms> rooms, FakeGpu& gpu, int version = 23007)
      : rooms_(std::move(rooms)), gpu_(gpu), version_(version) {}
  int version() const override { return version_; }
  Result<GpuGroupId> MakeId() override;
  Result<std::unique_ptr<GpuGroup>> Connect(const GpuGroupId& id, int size, int rank, Device device,
                                            const GpuGroupOptions& options) override;
  MemoryRegistration registration() const override { return MemoryRegistration::kTogether; }
  std::unique_ptr<Memory> MakeMemory(Device) override { return gpu_.MakeMemory(); }

 private:
  std::shared_ptr<Rooms> rooms_;
  FakeGpu& gpu_;
  int version_;
};

// One GPU for each rank of a World.
class FakeGpus {
 public:
  // `nccl[rank]`: the rank's version of it, 0 for none.
  explicit FakeGpus(std::vector<int> nccl);
  ~FakeGpus();
  int size() const { return static_cast<int>(drivers_.size()); }
  // For the rank's runtime.
  std::shared_ptr<Gpus> Of(int rank, const GpuChoices& choices = {});
  FakeGpu& gpu(int rank);
  FakeNetwork& fake_network(int rank);
  // In place of the fake network, which stays below it; null: no other.
  void Use(int rank, GpuNetwork* network);
  std::vector<std::string> complaints() const;  // of all

 private:
  class Driver;
  std::shared_ptr<FakeNetwork::Rooms> rooms_ = std::make_shared<FakeNetwork::Rooms>();
  std::vector<std::unique_ptr<Driver>> drivers_;
};

}  // namespace horon::test
