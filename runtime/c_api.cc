// The C API over Runtime: checks what a caller may get wrong, stops every exception, owns the one
// mutable global. How a job is put together is in join.cc.

#include <pthread.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/include/horon/horon.h"
#include "runtime/join.h"

struct horon_work {
  std::atomic<int> references{1};
  std::shared_ptr<horon::Work> work;
};

namespace horon {
namespace {

struct Global {
  Mutex mutex;  // guards job; never held during a call into a runtime
  std::shared_ptr<Job> job HORON_GUARDED_BY(mutex);  // null when not initialised
  Mutex joining;                                     // one init or shutdown at a time
  ProcessState process;
  Config config;                    // of the last init
  std::atomic<bool> forked{false};  // in a child of the process that initialised
};
Global& The() {
  static Global* global = new Global;  // leaked: user threads may still call while statics die
  return *global;
}

thread_local std::string last_error;

int Fail(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<int>(status.code());
}

// Runs f, which gives a Status; what the standard library throws becomes one.
template <typename F>
int Guard(F&& f) {
  try {
    return Fail(f());
  } catch (const std::exception& e) {
    return Fail(Status::Internal(
        std::string("out of memory or another fault of the standard library: ") + e.what()));
  }
}

std::shared_ptr<Job> Current() {
  if (The().forked.load(std::memory_order_relaxed)) return nullptr;
  MutexLock lock(The().mutex);
  return The().job;
}

Status NotInitialised() {
  if (The().forked.load(std::memory_order_relaxed)) {
    return Status::Aborted(
        "this process was forked from one that had initialised Horon; only the parent may use it");
  }
  return Status::Aborted("Horon has not been initialised, or was shut down; call init first");
}

template <typename F>
int Query(F&& f) {
  const std::shared_ptr<Job> job = Current();
  return job ? f(*job->runtime) : -1;
}

Status CheckTensor(const horon_request& r) {
  if (r.struct_bytes != sizeof(horon_request))
    return Status::InvalidArgument("horon_request.struct_bytes is not sizeof(horon_request)");
  if (r.name == nullptr || *r.name == '\0') return Status::InvalidArgument("a tensor needs a name");
  const std::string who = "tensor '" + std::string(r.name) + "': ";
  if (r.op == nullptr || std::strncmp(r.op, "process_set.", 12) == 0)
    return Status::InvalidArgument(who + "no op was given");
  if (r.dtype < 0 || r.dtype >= kDataTypes)
    return Status::InvalidArgument(who + "dtype " + std::to_string(r.dtype) + " is not supported");
  if (r.ndim < 0 || r.ndim > 64 || (r.ndim > 0 && r.shape == nullptr))
    return Status::InvalidArgument(who + std::to_string(r.ndim) + " dimensions");
  if (r.device >= 0)
    return Status::Unsupported(who + "it lies on GPU " + std::to_string(r.device) +
                               ", and this build of Horon has no CUDA support");
  __int128 count = 1;
  for (int i = 0; i < r.ndim; ++i) {
    if (r.shape[i] < 0)
      return Status::InvalidArgument(who + "dimension " + std::to_string(i) + " is negative");
    count *= r.shape[i];
    if (count > (int64_t{1} << 56))
      return Status::InvalidArgument(who + "more elements than memory can hold");
  }
  if (count > 0 && r.input == nullptr) return Status::InvalidArgument(who + "input is null");
  if (r.splits_count < 0 || r.weights_count < 0 || (r.splits_count > 0 && r.splits == nullptr) ||
      (r.weights_count > 0 && r.weights == nullptr))
    return Status::InvalidArgument(who + "splits or weights are missing");
  if (!std::isfinite(r.prescale) || !std::isfinite(r.postscale))
    return Status::InvalidArgument(who + "a scale factor is not finite");
  return Status::Ok();
}

Status CheckMember(const Runtime& runtime, const horon_request& r) {
  const auto ranks = runtime.process_sets().Find(r.process_set);
  if (!ranks)
    return Status::InvalidArgument("tensor '" + std::string(r.name) + "': process set " +
                                   std::to_string(r.process_set) +
                                   " does not exist or was removed");
  for (int member : *ranks) {
    if (member == runtime.rank()) return Status::Ok();
  }
  return Status::InvalidArgument(
      "tensor '" + std::string(r.name) + "': rank " + std::to_string(runtime.rank()) +
      " is not a member of process set " + std::to_string(r.process_set));
}

Result<Entry> MakeEntry(Runtime& runtime, const horon_request& r) {
  HORON_TRY(CheckTensor(r));
  HORON_TRY(CheckMember(runtime, r));
  HORON_ASSIGN([[maybe_unused]] Op* const op, runtime.ops().Find(r.op));
  Entry entry;
  Request& request = entry.request;
  request.name = r.name;
  request.op = r.op;
  request.dtype = static_cast<DataType>(r.dtype);
  request.shape.assign(r.shape, r.shape + r.ndim);
  request.prescale = r.prescale == 0 ? 1.0 : r.prescale;
  request.postscale = r.postscale == 0 ? 1.0 : r.postscale;
  request.process_set = r.process_set;
  request.round = r.round;
  request.splits.assign(r.splits, r.splits + r.splits_count);
  request.weights.assign(r.weights, r.weights + r.weights_count);
  entry.input = static_cast<const std::byte*>(r.input);
  entry.output = static_cast<std::byte*>(r.output);
  return entry;
}

Status Submit(Runtime& runtime, std::span<const horon_request> requests, const char* group,
              bool wake, std::shared_ptr<Work>* work) {
  *work = std::make_shared<Work>(static_cast<int>(requests.size()));
  std::vector<Queue::Submission> submissions;
  std::string names;
  for (const horon_request& r : requests) {
    HORON_ASSIGN(Entry entry, MakeEntry(runtime, r));
    if (group != nullptr) {
      entry.request.group = group;
      entry.request.group_size = static_cast<int32_t>(requests.size());
      names += entry.request.name + '\n';
    }
    submissions.push_back({std::move(entry), *work, static_cast<int>(submissions.size())});
  }
  if (group != nullptr) {
    const uint64_t hash = TensorId(requests[0].process_set, names);
    for (auto& s : submissions) s.entry.request.group_hash = hash;
  }
  return runtime.Submit(std::move(submissions), wake);
}

horon_work* Handle(std::shared_ptr<Work> work) {
  auto* handle = new horon_work;
  handle->work = std::move(work);
  return handle;
}

Status SubmitOne(const horon_request* request, bool wake, horon_work** work) {
  const auto job = Current();
  if (!job) return NotInitialised();
  std::shared_ptr<Work> made;
  HORON_TRY(Submit(*job->runtime, {request, 1}, nullptr, wake, &made));
  *work = Handle(std::move(made));
  return Status::Ok();
}

// A change of process sets is a request like any other; the negotiator applies it.
Status ChangeSets(const char* op, std::vector<int64_t> numbers, int* id) {
  const std::shared_ptr<Job> job = Current();
  if (!job) return NotInitialised();
  auto work = std::make_shared<Work>(1);
  Entry entry;
  entry.request.op = op;
  entry.request.name =
      "change of process sets";  // one name for all: ranks that change different sets meet
  entry.request.splits = std::move(numbers);
  entry.request.dtype = DataType::kUInt8;
  std::vector<Queue::Submission> submissions;
  submissions.push_back({std::move(entry), work, 0});
  HORON_TRY(job->runtime->Submit(std::move(submissions), false));
  job->runtime->Wait(*work, std::chrono::nanoseconds::max());
  HORON_TRY(work->status());
  if (id != nullptr) *id = static_cast<int>(work->outputs()[0].received_splits[0]);
  return Status::Ok();
}

const Output* OutputOf(const horon_work* work, int index) {
  if (work == nullptr || !work->work->done() || !work->work->status().ok()) return nullptr;
  const auto& outputs = work->work->outputs();
  return index >= 0 && index < static_cast<int>(outputs.size())
             ? &outputs[static_cast<size_t>(index)]
             : nullptr;
}

void AtExit() {
  if (The().forked.load(std::memory_order_relaxed)) return;
  horon_shutdown();
  if (The().process.finalize_mpi != nullptr)
    The().process.finalize_mpi(static_cast<int>(The().config.shutdown_time.count()));
}

Status Init() {
  Global& global = The();
  MutexLock joining(global.joining);
  if (global.forked.load(std::memory_order_relaxed)) return NotInitialised();
  if (Current()) return Status::Ok();
  HORON_ASSIGN(global.config, ReadConfig());
  HORON_TRY(
      ConfigureLog(global.config.log, static_cast<int>(std::max<int64_t>(0, global.config.rank))));
  if (global.process.generation == 0) {
    pthread_atfork(nullptr, nullptr, [] { The().forked.store(true, std::memory_order_relaxed); });
    std::atexit(AtExit);
  }
  HORON_ASSIGN(std::shared_ptr<Job> job, Join(global.config, global.process));
  HORON_TRY(ConfigureLog(global.config.log, job->runtime->rank()));
  MutexLock lock(global.mutex);
  global.job = std::move(job);
  return Status::Ok();
}

}  // namespace
}  // namespace horon

using namespace horon;  // NOLINT: this file is the namespace's door to C

extern "C" {

int horon_init(void) { return Guard(Init); }

int horon_shutdown(void) {
  return Guard([] {
    if (The().forked.load(std::memory_order_relaxed)) return Status::Ok();
    MutexLock joining(The().joining);
    std::shared_ptr<Job> job;
    {
      MutexLock lock(The().mutex);
      job = std::exchange(The().job, nullptr);
    }
    if (job) job->Leave();
    return Status::Ok();
  });
}

void horon_abandon(const char* what) {
  const auto job = Current();
  if (job && job->watch && what != nullptr) job->watch->SayLost(what);
}

void horon_describe(void) {
  const auto job = Current();
  if (job) job->runtime->Describe();
}

int horon_is_initialized(void) { return Current() != nullptr ? 1 : 0; }
const char* horon_last_error(void) { return last_error.c_str(); }
const char* horon_version(void) { return HORON_VERSION; }

int horon_rank(void) {
  return Query([](Runtime& r) { return r.rank(); });
}
int horon_size(void) {
  return Query([](Runtime& r) { return r.topology().size(); });
}
int horon_local_rank(void) {
  return Query([](Runtime& r) { return r.topology().local_rank(r.rank()); });
}
int horon_local_size(void) {
  return Query([](Runtime& r) { return r.topology().local_size(r.rank()); });
}
int horon_cross_rank(void) {
  return Query([](Runtime& r) { return r.topology().cross_rank(r.rank()); });
}
int horon_cross_size(void) {
  return Query([](Runtime& r) { return r.topology().cross_size(r.rank()); });
}
int horon_is_homogeneous(void) {
  return Query([](Runtime& r) { return r.topology().homogeneous() ? 1 : 0; });
}

// The names are literals, so they outlive the job.
const char* horon_controller(void) {
  const auto job = Current();
  for (const char* name : {"shm", "mpi", "self"}) {
    if (job && job->controller == name) return name;
  }
  return "";
}
const char* horon_transport(void) {
  const auto job = Current();
  for (const char* name : {"shm", "mpi", "shm+mpi", "self"}) {
    if (job && job->transport == name) return name;
  }
  return "";
}

int horon_mpi_available(void) {
  const int code = Guard([] {
    MutexLock joining(The().joining);
    HORON_ASSIGN(const Config config, ReadConfig());
    return OpenMpiPlugin(config, The().process);
  });
  return code == HORON_OK ? 1 : 0;
}

int horon_add_process_set(const int* ranks, int count, int* id) {
  return Guard([&]() -> Status {
    const auto job = Current();
    if (!job) return NotInitialised();
    std::vector<int64_t> sorted(ranks, ranks + std::max(0, count));
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty() || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
        sorted.front() < 0 || sorted.back() >= job->runtime->topology().size()) {
      return Status::InvalidArgument(
          "a process set needs different ranks between 0 and size - 1, not " + ToString(sorted));
    }
    return ChangeSets("process_set.add", std::move(sorted), id);
  });
}

int horon_remove_process_set(int id) {
  return Guard([&]() -> Status {
    const auto job = Current();
    if (!job) return NotInitialised();
    if (id == 0 || !job->runtime->process_sets().Find(id)) {
      return Status::InvalidArgument("process set " + std::to_string(id) +
                                     (id == 0 ? " is all ranks and stays" : " does not exist"));
    }
    return ChangeSets("process_set.remove", {id}, nullptr);
  });
}

int horon_process_set_size(int id) {
  return Query([&](Runtime& r) {
    const auto ranks = r.process_sets().Find(id);
    return ranks ? static_cast<int>(ranks->size()) : -1;
  });
}
int horon_process_set_rank(int id) {
  return Query([&](Runtime& r) {
    const auto ranks = r.process_sets().Find(id);
    for (size_t i = 0; ranks && i < ranks->size(); ++i) {
      if ((*ranks)[i] == r.rank()) return static_cast<int>(i);
    }
    return -1;
  });
}
int horon_process_set_ranks(int id, int* out) {
  return Guard([&]() -> Status {
    const auto job = Current();
    if (!job) return NotInitialised();
    const auto ranks = job->runtime->process_sets().Find(id);
    if (!ranks)
      return Status::InvalidArgument("process set " + std::to_string(id) + " does not exist");
    std::copy(ranks->begin(), ranks->end(), out);
    return Status::Ok();
  });
}

int horon_submit(const horon_request* request, horon_work** work) {
  return Guard([&] { return SubmitOne(request, true, work); });
}

int horon_begin(const horon_request* request, horon_work** work) {
  return Guard([&] { return SubmitOne(request, false, work); });
}

int horon_submit_group(const horon_request* requests, int count, const char* group,
                       horon_work** work) {
  return Guard([&]() -> Status {
    const auto job = Current();
    if (!job) return NotInitialised();
    if (count < 1 || group == nullptr || *group == '\0')
      return Status::InvalidArgument("a group needs a name and at least one tensor");
    std::shared_ptr<Work> made;
    HORON_TRY(Submit(*job->runtime, {requests, static_cast<size_t>(count)}, group, true, &made));
    *work = Handle(std::move(made));
    return Status::Ok();
  });
}

int horon_run(const horon_request* request, horon_work** work) {
  return Guard([&]() -> Status {
    const auto job = Current();
    if (!job) return NotInitialised();
    std::shared_ptr<Work> made;
    HORON_TRY(Submit(*job->runtime, {request, 1}, nullptr, false, &made));
    job->runtime->Wait(*made, std::chrono::nanoseconds::max());
    HORON_TRY(made->status());
    if (work != nullptr) *work = Handle(std::move(made));
    return Status::Ok();
  });
}

int horon_work_done(const horon_work* work) { return work->work->done() ? 1 : 0; }

int horon_work_wait(horon_work* work, int timeout_ms) {
  const auto limit = timeout_ms < 0
                         ? std::chrono::nanoseconds::max()
                         : std::chrono::nanoseconds(std::chrono::milliseconds(timeout_ms));
  Work& w = *work->work;
  if (!w.done() && The().forked.load(std::memory_order_relaxed)) return Fail(NotInitialised());
  const std::shared_ptr<Job> job = w.done() ? nullptr : Current();
  const bool done =
      job ? job->runtime->Wait(w, limit)
          : w.WaitFor(std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365)));
  return done ? Fail(w.status()) : HORON_WAIT_TIMEOUT;
}

int horon_work_wait_all(horon_work* const* works, int count) {
  int first = HORON_OK;
  std::string message;
  for (int i = 0; i < count; ++i) {
    const int code = horon_work_wait(works[i], -1);
    if (code == HORON_OK || first != HORON_OK) continue;
    first = code;
    message = last_error;
  }
  if (first != HORON_OK) last_error = message;
  return first;
}

const char* horon_work_message(const horon_work* work) {
  return work->work->done() ? work->work->status().message().c_str() : "";
}
void horon_work_retain(horon_work* work) {
  work->references.fetch_add(1, std::memory_order_relaxed);
}
void horon_work_release(horon_work* work) {
  // In a forked child a lock of the pool may be held by a thread that does not exist there: leak.
  if (work == nullptr || The().forked.load(std::memory_order_relaxed)) return;
  if (work->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete work;
}

int horon_work_output_ndim(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? static_cast<int>(output->shape.size()) : -1;
}
const int64_t* horon_work_output_shape(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? output->shape.data() : nullptr;
}
void* horon_work_output(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? output->data : nullptr;
}
const int64_t* horon_work_received_splits(const horon_work* work, int index, int* count) {
  const Output* output = OutputOf(work, index);
  const bool some = output != nullptr && !output->received_splits.empty();
  *count = some ? static_cast<int>(output->received_splits.size()) : 0;
  return some ? output->received_splits.data() : nullptr;
}

int64_t horon_counter(const char* name) {
  const auto job = Current();
  if (!job) return 0;
  for (const auto& [key, value] : job->runtime->counters().Snapshot()) {
    if (key == name) return value;
  }
  return 0;
}
void horon_counters(void (*visit)(const char*, int64_t, void*), void* user) {
  const auto job = Current();
  if (!job) return;
  for (const auto& [name, value] : job->runtime->counters().Snapshot())
    visit(name.c_str(), value, user);
}
int64_t horon_memory_bytes(void) {
  const auto job = Current();
  return job ? job->runtime->memory_bytes() : 0;
}
void horon_knobs(void (*visit)(const char*, int, const char*, void*), void* user) {
  for (const Knob& knob : Knobs()) visit(knob.name, knob.horovod ? 1 : 0, knob.meaning, user);
}

}  // extern "C"
