#include "test/support/fake_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <thread>

namespace horon::test {
namespace {

constexpr int64_t kRegion = 1 << 30;  // of addresses; pages when they are touched
constexpr size_t kMostAccesses = 4096;

void Join(Clock& into, const Clock& other) {
  for (const auto& [stream, number] : other) into[stream] = std::max(into[stream], number);
}

uint64_t At(const Clock& clock, int stream) {
  const auto found = clock.find(stream);
  return found == clock.end() ? 0 : found->second;
}

Status RefuseCaptured(const FakeStream& stream) {
  if (!stream.captured) return Status::Ok();
  return Status::Unsupported(
      "its stream is being captured into a CUDA graph, and a collective cannot be part of one: "
      "call Horon outside of the capture");
}

// Never given back: the region goes with the GPU.
class RegionMemory final : public Memory {
 public:
  explicit RegionMemory(FakeGpu& gpu) : gpu_(gpu), device_(gpu.device()) {}
  Device device() const override { return device_; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    HORON_TRY(gpu_.state());
    return gpu_.Take(bytes);
  }
  void Free(std::byte*, int64_t) override {}

 private:
  FakeGpu& gpu_;
  Device device_;
};

}  // namespace

// Plain memory of the host, but that the GPU knows of it while it is there.
class FakePinnedMemory final : public Memory {
 public:
  explicit FakePinnedMemory(FakeGpu& gpu) : gpu_(gpu) {}
  Device device() const override { return host_->device(); }
  Result<std::byte*> Allocate(int64_t bytes) override {
    HORON_TRY(gpu_.state());
    HORON_ASSIGN(std::byte* const data, host_->Allocate(bytes));
    std::lock_guard lock(gpu_.mutex_);
    gpu_.pinned_[data] = bytes;
    return data;
  }
  void Free(std::byte* data, int64_t bytes) override {
    {
      std::lock_guard lock(gpu_.mutex_);
      gpu_.pinned_.erase(data);
      std::erase_if(gpu_.accesses_, [&](const FakeGpu::Access& access) {
        return access.begin < data + bytes && data < access.end;
      });
    }
    host_->Free(data, bytes);
  }

 private:
  FakeGpu& gpu_;
  const std::unique_ptr<Memory> host_ = MakeHostMemory();
};

// --- the GPU

FakeGpu::FakeGpu(int index) : index_(index) {
  const int file = memfd_create("fake gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kRegion) != 0) std::abort();
  const auto map = [&](int protection) {
    void* at = mmap(nullptr, kRegion, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(at);
  };
  outside_ = map(PROT_NONE);
  inside_ = map(PROT_READ | PROT_WRITE);
  close(file);
}

FakeGpu::~FakeGpu() {
  default_.reset();
  munmap(outside_, kRegion);
  munmap(inside_, kRegion);
}

GpuIdentity FakeGpu::identity() const {
  struct {
    const FakeGpu* gpu;
    int64_t process;
  } const own{twin_ != nullptr ? twin_ : this, getpid()};
  GpuIdentity identity{};
  static_assert(sizeof own == sizeof identity);
  std::memcpy(identity.data(), &own, sizeof own);
  return identity;
}

FakeStream& FakeGpu::Framework(void* stream) {
  if (stream != nullptr) return *static_cast<FakeStream*>(stream);
  std::call_once(default_made_, [this] { default_ = std::make_unique<FakeStream>(*this); });
  return *default_;
}

std::byte* FakeGpu::Take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  std::byte* const at = outside_ + taken_;
  taken_ += (bytes + 255) / 256 * 256;
  if (taken_ > kRegion) std::abort();
  return at;
}

int64_t FakeGpu::taken() const {
  std::lock_guard lock(mutex_);
  return taken_;
}

std::byte* FakeGpu::Inside(std::byte* device) const {
  const bool here = device >= outside_ && device < outside_ + kRegion;
  return here ? inside_ + (device - outside_) : device;
}

std::unique_ptr<Memory> FakeGpu::MakeMemory() { return std::make_unique<RegionMemory>(*this); }
int64_t FakeGpu::pinned() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [data, length] : pinned_) bytes += length;
  return bytes;
}

std::unique_ptr<Memory> FakeGpu::MakePinnedMemory() {
  return std::make_unique<FakePinnedMemory>(*this);
}

Result<std::unique_ptr<Stream>> FakeGpu::MakeStream(PairKernels) {
  HORON_TRY(state());
  return std::unique_ptr<Stream>(std::make_unique<FakeStream>(*this));
}

std::shared_ptr<Stream> FakeGpu::Borrow(void* framework_stream) {
  const std::shared_ptr<void> nobody;
  return {nobody, &Framework(framework_stream)};
}

Result<SharedEvent> FakeGpu::Record(void* framework_stream) {
  FakeStream& stream = Framework(framework_stream);
  HORON_TRY(RefuseCaptured(stream));
  return stream.Record();
}

void FakeGpu::Touch(const Span& span, bool writes) {
  std::lock_guard lock(mutex_);
  if (Knows(span)) Check(host_, "a message", span, -1, writes);
}

bool FakeGpu::Knows(const Span& span) const {
  if (span.data >= outside_ && span.data < outside_ + kRegion) return true;
  const auto after = pinned_.upper_bound(span.data);
  if (after == pinned_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return span.data < begin + bytes;
}

void FakeGpu::Lose(Status why) {
  std::lock_guard lock(mutex_);
  state_ = std::move(why);
  for (FakeStream* const stream : open_) stream->Release();
}

Status FakeGpu::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void FakeGpu::Complain(const std::string& what) {
  std::lock_guard lock(mutex_);
  complaints_.push_back(what);
}

std::vector<std::string> FakeGpu::complaints() const {
  std::lock_guard lock(mutex_);
  return complaints_;
}

void FakeGpu::Check(const Clock& known, const std::string& what, const Span& span, int stream,
                    bool writes) {
  for (const Access& access : accesses_) {
    const bool overlap = span.data < access.end && access.begin < span.data + span.bytes;
    if (!overlap || access.stream == stream || (!writes && !access.writes)) continue;
    if (access.number <= At(known, access.stream)) continue;
    complaints_.push_back(what + (writes ? " writes" : " reads") + " what stream " +
                          std::to_string(access.stream) + (access.writes ? " writes" : " reads") +
                          ", without an event between");
  }
}

bool FakeGpu::Note(FakeStream& stream, const std::string& what, const std::vector<Span>& reads,
                   const std::vector<Span>& writes) {
  std::lock_guard lock(mutex_);
  Join(stream.known_, host_);
  const size_t before = complaints_.size();
  for (const Span& span : reads) Check(stream.known_, what, span, stream.id_, false);
  for (const Span& span : writes) Check(stream.known_, what, span, stream.id_, true);
  const uint64_t number = ++stream.number_;
  stream.known_[stream.id_] = number;
  const auto add = [&](const std::vector<Span>& spans, bool writing) {
    for (const Span& s : spans) {
      if (s.bytes > 0) accesses_.push_back({s.data, s.data + s.bytes, stream.id_, number, writing});
    }
  };
  add(reads, false);
  add(writes, true);
  if (accesses_.size() > kMostAccesses)
    accesses_.erase(accesses_.begin(), accesses_.end() - kMostAccesses / 2);
  return complaints_.size() == before;
}

// --- streams

struct FakeStream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, held = false, ended = false;
  std::thread thread;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ended || (!held && !work.empty()); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void Add(std::function<void()> next) {
    std::lock_guard lock(mutex);
    work.push_back(std::move(next));
    changed.notify_all();
  }
};

bool FakeGpu::Rests() const {
  std::lock_guard lock(mutex_);
  return std::all_of(open_.begin(), open_.end(), [](const FakeStream* stream) {
    std::lock_guard inside(stream->queue_->mutex);
    return !stream->queue_->busy && stream->queue_->work.empty();
  });
}

FakeStream::FakeStream(FakeGpu& gpu) : gpu_(gpu), queue_(std::make_unique<Queue>()) {
  {
    std::lock_guard lock(gpu.mutex_);
    id_ = ++gpu.streams_;
    gpu.open_.insert(this);
  }
  queue_->thread = std::thread([queue = queue_.get()] { queue->Run(); });
}

FakeStream::~FakeStream() {
  {
    std::lock_guard lock(gpu_.mutex_);
    gpu_.open_.erase(this);
  }
  Release();
  Finish();
  {
    std::lock_guard lock(queue_->mutex);
    queue_->ended = true;
    queue_->changed.notify_all();
  }
  queue_->thread.join();
}

void FakeStream::Finish() {
  {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->work.empty() && !queue_->busy; });
  }
  std::lock_guard lock(gpu_.mutex_);
  Join(gpu_.host_, known_);
}

void FakeStream::Hold() {
  std::lock_guard lock(queue_->mutex);
  queue_->held = true;
}

void FakeStream::Release() {
  std::lock_guard lock(queue_->mutex);
  queue_->held = false;
  queue_->changed.notify_all();
}

void FakeStream::Enqueue(const std::string& what, const std::vector<Span>& reads,
                         const std::vector<Span>& writes, std::function<void()> work) {
  if (!gpu_.state().ok() || !gpu_.Note(*this, what, reads, writes)) return;
  queue_->Add([&gpu = gpu_, work = std::move(work)] {
    if (gpu.state().ok()) work();
  });
}

Status FakeStream::Start(const std::string& what, const std::vector<Span>& reads,
                         const std::vector<Span>& writes, std::function<void()> work) {
  Enqueue(what, reads, writes, std::move(work));
  return gpu_.state();
}

// --- events

class FakeEvent final : public Event {
 public:
  explicit FakeEvent(FakeStream& on) : gpu_(on.gpu_), known_(on.known_) {}

  Result<bool> Done() override {
    HORON_TRY(gpu_.state());
    std::lock_guard lock(mutex_);
    if (!done_) return false;
    std::lock_guard clocks(gpu_.mutex_);
    Join(gpu_.host_, known_);
    return true;
  }
  Status HoldBack(void* on) override {
    FakeStream& held = gpu_.Framework(on);
    HORON_TRY(RefuseCaptured(held));
    HORON_TRY(gpu_.state());
    {
      std::lock_guard clocks(gpu_.mutex_);
      Join(held.known_, known_);
    }
    const std::shared_ptr<FakeEvent> self = self_.lock();
    held.queue_->Add([self] {
      std::unique_lock lock(self->mutex_);
      self->changed_.wait(lock, [&] { return self->done_; });
    });
    return Status::Ok();
  }
  void Happen() {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  static Result<SharedEvent> On(FakeStream& on) {
    HORON_TRY(on.gpu_.state());
    std::shared_ptr<FakeEvent> event;
    {
      std::lock_guard clocks(on.gpu_.mutex_);
      event = std::make_shared<FakeEvent>(on);
      event->self_ = event;
      event->stream = &on;
      event->begun = ++on.gpu_.events_;
      event->over = ++on.gpu_.events_;
    }
    on.queue_->Add([event] { event->Happen(); });
    return SharedEvent(event);
  }

 private:
  FakeGpu& gpu_;
  const Clock known_;
  std::weak_ptr<FakeEvent> self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

Result<SharedEvent> FakeStream::Record() { return FakeEvent::On(*this); }

}  // namespace horon::test
