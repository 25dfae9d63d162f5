// The collectives between fake GPUs: on each rank's stream, the last to come does the work of all.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>

#include "test/support/fake_gpu.h"

namespace horon::test {

// Of what ranks have registered together: the how manieth, and how far in it a collective begins.
constexpr int64_t kNotRegistered = -1, kByEach = 0;
using Place = std::pair<int64_t, int64_t>;

// A rank's part of a collective, in memory that its stream may use.
struct Part {
  std::vector<Span> send, recv;
  std::optional<Place> place = {};  // where all of it lies; nothing where there is nothing
};

struct FakeNetwork::Room {
  using Work = std::function<void(std::vector<Part>&)>;
  struct Meeting {
    std::string what;
    std::vector<Part> parts;
    std::optional<Place> place;
    int there = 0, gone = 0;
    bool over = false;
  };

  // On a stream's thread. Waits for the other ranks; false when the group was aborted.
  bool Meet(uint64_t number, int rank, Part part, const std::string& what, const Work& work,
            FakeGpu& gpu) {
    std::unique_lock lock(mutex);
    Meeting& meeting = meetings[number];
    if (meeting.there == 0) {
      meeting.what = what;
      meeting.parts.resize(static_cast<size_t>(size));
    }
    if (part.place && meeting.place.value_or(*part.place) != *part.place)
      gpu.Complain(what + " of memory that ranks have not registered alike");
    if (part.place) meeting.place = part.place;
    if (meeting.what != what) gpu.Complain("one rank calls " + meeting.what + ", another " + what);
    meeting.parts[static_cast<size_t>(rank)] = std::move(part);
    if (++meeting.there == size && !aborted) {
      if (meeting.what == what) work(meeting.parts);
      meeting.over = true;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return meeting.over || aborted; });
    const bool over = meeting.over;
    if (++meeting.gone == size) meetings.erase(number);
    return over;
  }

  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  bool aborted = false;
  std::map<uint64_t, Meeting> meetings;
};

namespace {

using Room = FakeNetwork::Room;

void CopySpan(const Span& from, const Span& to) {
  if (from.bytes > 0) std::memmove(to.data, from.data, static_cast<size_t>(from.bytes));
}

class FakeGroup final : public GpuGroup {
 public:
  FakeGroup(std::shared_ptr<Room> room, int rank, FakeGpu& gpu)
      : room_(std::move(room)), rank_(rank), gpu_(gpu) {}

  Result<bool> Ready() override {
    std::lock_guard lock(room_->mutex);
    return room_->joined == room_->size;
  }
  Status Check() override { return Status::Ok(); }
  void Leave() override {}
  bool gone() const override { return true; }
  bool stuck() const override { return false; }
  void Abort() override {
    std::lock_guard lock(room_->mutex);
    room_->aborted = true;
    room_->changed.notify_all();
  }
  bool Reduces(DataType dtype) const override { return dtype != DataType::kInt16; }
  Status Register(const Span& memory) override {
    Keep(memory, kByEach);
    return Status::Ok();
  }
  Result<MemoryRegistration> RegisterTogether(const Span& memory) override {
    Keep(memory, ++together_);
    return MemoryRegistration::kTogether;
  }
  Status Deregister(const std::byte* memory) override {
    const auto found = registered_.find(memory);
    if (found == registered_.end()) {
      gpu_.Complain("memory is deregistered that is not registered");
      return Status::Ok();
    }
    if (found->second.number != kByEach) gpu_.Complain("what all registered one rank gives back");
    gpu_.Touch({const_cast<std::byte*>(memory), found->second.bytes}, true);
    registered_.erase(found);
    return Status::Ok();
  }

  Status Allreduce(DataType dtype, ReduceKind kind, std::byte* block, int64_t count,
                   Stream& stream) override {
    const Span span{block, count * SizeOf(dtype)};
    return Start("allreduce", {{span}, {span}}, stream, [=](std::vector<Part>& parts) {
      std::vector<const std::byte*> inputs;
      for (const Part& part : parts) inputs.push_back(part.send[0].data);
      std::vector<std::byte> sum(static_cast<size_t>(span.bytes));
      ReduceInto(kind, dtype, 1.0, inputs, sum.data(), count);
      for (const Part& part : parts) CopySpan({sum.data(), span.bytes}, part.recv[0]);
    });
  }
  Status ReduceScatter(DataType dtype, ReduceKind kind, const std::byte* block, std::byte* out,
                       int64_t count, Stream& stream) override {
    const int64_t bytes = count * SizeOf(dtype);
    const Part mine{{{const_cast<std::byte*>(block), bytes * room_->size}}, {{out, bytes}}};
    return Start("reduce-scatter", mine, stream, [=](std::vector<Part>& parts) {
      std::vector<std::vector<std::byte>> sums;
      for (size_t r = 0; r < parts.size(); ++r) {
        std::vector<const std::byte*> inputs;
        for (const Part& part : parts)
          inputs.push_back(part.send[0].data + static_cast<int64_t>(r) * bytes);
        sums.emplace_back(static_cast<size_t>(bytes));
        ReduceInto(kind, dtype, 1.0, inputs, sums.back().data(), count);
      }
      for (size_t r = 0; r < parts.size(); ++r) CopySpan({sums[r].data(), bytes}, parts[r].recv[0]);
    });
  }
  Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                   Stream& stream) override {
    const Part mine{{{const_cast<std::byte*>(part), bytes}}, {{block, bytes * room_->size}}};
    return Start("allgather", mine, stream, [=](std::vector<Part>& parts) {
      std::vector<std::byte> all;
      for (const Part& p : parts) all.insert(all.end(), p.send[0].data, p.send[0].data + bytes);
      for (const Part& p : parts)
        CopySpan({all.data(), static_cast<int64_t>(all.size())}, p.recv[0]);
    });
  }
  Status Broadcast(std::span<const Span> spans, int root, Stream& stream) override {
    const std::vector<Span> all(spans.begin(), spans.end());
    const Part mine{rank_ == root ? all : std::vector<Span>{},
                    rank_ == root ? std::vector<Span>{} : all};
    return Start("broadcast", mine, stream, [=](std::vector<Part>& parts) {
      const std::vector<Span>& from = parts[static_cast<size_t>(root)].send;
      for (const Part& part : parts) {
        for (size_t i = 0; i < part.recv.size(); ++i) CopySpan(from[i], part.recv[i]);
      }
    });
  }
  Status Exchange(std::span<const Span> send, std::span<const Span> recv, Stream& stream) override {
    const Part mine{{send.begin(), send.end()}, {recv.begin(), recv.end()}};
    const auto size = static_cast<size_t>(room_->size);
    return Start("exchange", mine, stream, [=, this](std::vector<Part>& parts) {
      for (size_t to = 0; to < size; ++to) {
        for (size_t i = 0; i < parts[to].recv.size(); ++i) {
          const Span& from = parts[i % size].send[i / size * size + to];
          if (from.bytes != parts[to].recv[i].bytes)
            gpu_.Complain("one rank sends " + std::to_string(from.bytes) +
                          " bytes, another expects " + std::to_string(parts[to].recv[i].bytes));
          else
            CopySpan(from, parts[to].recv[i]);
        }
      }
    });
  }

 private:
  Status Start(const std::string& what, const Part& part, Stream& stream, Room::Work work) {
    Part inside = part;
    inside.place = PlaceOf(part);
    for (auto* spans : {&inside.send, &inside.recv}) {
      for (Span& span : *spans) span.data = gpu_.Inside(span.data);
    }
    auto meet = [room = room_, number = next_++, rank = rank_, inside, what, work, gpu = &gpu_] {
      room->Meet(number, rank, inside, what, work, *gpu);
    };
    // A device does one collective at a time, of whichever group: the order must not be left to it.
    std::vector<Span> writes = part.recv;
    writes.push_back({reinterpret_cast<std::byte*>(&gpu_), 1});
    static_cast<FakeStream&>(stream).Enqueue("the " + what, part.send, writes, meet);
    return Status::Ok();
  }

  struct Registered {
    int64_t bytes, number;
  };
  void Keep(const Span& memory, int64_t number) {
    if (!registered_.emplace(memory.data, Registered{memory.bytes, number}).second)
      gpu_.Complain("memory is registered twice");
  }
  // Where the longest span lies, which is the block where parts of it go elsewhere, if all of them
  // are registered.
  std::optional<Place> PlaceOf(const Part& part) const {
    std::optional<Place> place;
    int64_t longest = 0;
    for (const auto* spans : {&part.send, &part.recv}) {
      for (const Span& span : *spans) {
        if (span.bytes == 0 || place == Place{kNotRegistered, 0}) continue;
        const Place here = PlaceOf(span);
        if (span.bytes > longest || here.first == kNotRegistered) place = here;
        longest = std::max(longest, span.bytes);
      }
    }
    return place;
  }
  Place PlaceOf(const Span& span) const {
    const auto after = registered_.upper_bound(span.data);
    if (after == registered_.begin()) return {kNotRegistered, 0};
    const auto& [begin, known] = *std::prev(after);
    if (span.data + span.bytes > begin + known.bytes) return {kNotRegistered, 0};
    return {known.number, known.number == kByEach ? 0 : span.data - begin};
  }

  std::shared_ptr<Room> room_;
  int rank_;
  FakeGpu& gpu_;
  std::map<const std::byte*, Registered> registered_;
  int64_t together_ = 0;
  uint64_t next_ = 0;
};

}  // namespace

Result<GpuGroupId> FakeNetwork::MakeId() {
  std::lock_guard lock(rooms_->mutex);
  GpuGroupId id;
  std::memcpy(id.bytes.data(), &rooms_->next, sizeof rooms_->next);
  ++rooms_->next;
  return id;
}

Result<std::unique_ptr<GpuGroup>> FakeNetwork::Connect(const GpuGroupId& id, int size, int rank,
                                                       Device, const GpuGroupOptions&) {
  int number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  std::lock_guard lock(rooms_->mutex);
  std::shared_ptr<Room>& room = rooms_->by_number[number];
  if (!room) room = std::make_shared<Room>();
  std::lock_guard inside(room->mutex);
  room->size = size;
  ++room->joined;
  return std::unique_ptr<GpuGroup>(std::make_unique<FakeGroup>(room, rank, gpu_));
}

class FakeGpus::Driver final : public GpuDriver {
 public:
  Driver(std::shared_ptr<FakeNetwork::Rooms> rooms, int version)
      : gpu_(std::make_shared<FakeGpu>(0)), network_(std::move(rooms), *gpu_, version) {
    nccl_ = {version, version > 0 ? "a fake NCCL" : "none here"};
  }
  int devices() const override { return 2; }
  std::string version() const override { return "fake"; }
  const FoundLibrary& nccl() const override { return nccl_; }
  const FoundLibrary& cublas() const override { return none_; }
  Result<std::shared_ptr<Gpu>> Open(int index) override {
    if (index != 0) return Status::Unsupported("there is one fake GPU");
    return std::shared_ptr<Gpu>(gpu_);
  }
  GpuNetwork* network() override {
    if (nccl_.version == 0) return nullptr;
    return other_ != nullptr ? other_ : &network_;
  }
  FakeGpu& gpu() { return *gpu_; }
  FakeNetwork& fake_network() { return network_; }
  void Use(GpuNetwork* network) { other_ = network; }

 private:
  std::shared_ptr<FakeGpu> gpu_;
  FakeNetwork network_;
  GpuNetwork* other_ = nullptr;
  FoundLibrary nccl_, none_;
};

FakeGpus::FakeGpus(std::vector<int> nccl) {
  for (const int version : nccl) drivers_.push_back(std::make_unique<Driver>(rooms_, version));
}
FakeGpus::~FakeGpus() = default;

std::shared_ptr<Gpus> FakeGpus::Of(int rank, const GpuChoices& choices) {
  GpuDriver* const driver = drivers_[static_cast<size_t>(rank)].get();
  return std::make_shared<Gpus>([driver]() -> Result<GpuDriver*> { return driver; }, choices);
}

FakeNetwork& FakeGpus::fake_network(int rank) {
  return drivers_[static_cast<size_t>(rank)]->fake_network();
}

void FakeGpus::Use(int rank, GpuNetwork* network) {
  drivers_[static_cast<size_t>(rank)]->Use(network);
}

FakeGpu& FakeGpus::gpu(int rank) { return drivers_[static_cast<size_t>(rank)]->gpu(); }

std::vector<std::string> FakeGpus::complaints() const {
  std::vector<std::string> all;
  for (const auto& driver : drivers_) {
    for (const std::string& what : driver->gpu().complaints()) all.push_back(what);
  }
  return all;
}

}  // namespace horon::test
