// The C API over Runtime: stops every exception, owns the one mutable global. What a caller may get
// wrong about a tensor is checked in c_request.cc; how a job is put together is in join.cc; what a
// program asks about its job is in c_queries.cc.

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "runtime/base/log.h"
#include "runtime/base/look.h"
#include "runtime/base/mutex.h"
#include "runtime/base/own_descriptors.h"
#include "runtime/c_current.h"
#include "runtime/c_process_sets.h"
#include "runtime/c_request.h"
#include "runtime/c_work.h"
#include "runtime/include/horon/horon.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;

struct Global {
  Mutex mutex;  // guards job; never held during a call into a runtime
  std::shared_ptr<Job> job HORON_GUARDED_BY(mutex);  // null when not initialised
  Mutex joining;                                     // one init or shutdown at a time
  ProcessState process;
  Config config;                     // of the last init
  std::atomic<bool> forked{false};   // in a child of the process that initialised
  std::atomic<int> life{0};          // jobs joined so far
  std::atomic<int> left_behind{-1};  // the last life whose runtime was stuck at its end
};
// Whether this thread is in an init or a shutdown, from which a signal handler may call another
// one.
thread_local bool inside = false;
struct Inside {
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};
Global& The() {
  static Global* global = new Global;  // leaked: user threads may still call while statics die
  return *global;
}

}  // namespace

bool Forked() { return The().forked.load(std::memory_order_relaxed); }

std::shared_ptr<Job> Current() {
  if (Forked()) return nullptr;
  MutexLock lock(The().mutex);
  return The().job;
}

int Life() { return The().life.load(std::memory_order_relaxed); }

Status NotInitialised() {
  if (Forked()) {
    return Status::Aborted(
        "this process was forked from one that had initialised Horon; only the parent may use it");
  }
  return Status::Aborted("Horon has not been initialised, or was shut down; call init first");
}

namespace {

int Enqueue(std::span<const horon_request> requests, const char* group, bool wake,
            horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(std::shared_ptr<Work> made, Submit(runtime, requests, group, wake));
    *work = Handle(made);
    return Status::Ok();
  });
}

int StartAll(std::span<horon_tensor* const> tensors, const void* const* inputs,
             void* const* outputs, bool wake, horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(std::shared_ptr<Work> made, Start(runtime, tensors, inputs, outputs, wake));
    *work = Handle(made);
    return Status::Ok();
  });
}

// What is pending of a life that ended with its runtime stuck stays so for ever.
bool LeftBehind(const horon_work& work) {
  return !work.done() && work.life <= The().left_behind.load(std::memory_order_acquire);
}

// Without a job, or while it is being left, which finishes all works or leaves them behind. Whether
// it is done.
bool WaitForTheEnd(const horon_work& work, std::chrono::nanoseconds limit) {
  constexpr std::chrono::nanoseconds kLook = std::chrono::seconds(1), kYear = kLook * 3600 * 8760;
  const auto until = Clock::now() + std::min(limit, kYear);
  for (auto now = Clock::now(); now < until && !LeftBehind(work) && GoOn().ok();
       now = Clock::now()) {
    if (work.WaitFor(UntilLook(std::min<std::chrono::nanoseconds>(until - now, kLook))))
      return true;
  }
  return work.done();
}

void AtExit() {
  if (Forked()) return;
  horon_shutdown();
  The().process.mpi.Finalize(static_cast<int>(The().config.shutdown_time.count()));
}

Status Init() {
  Global& global = The();
  if (inside)
    return Status::Aborted("init cannot be called while an init or shutdown is under way");
  MutexLock joining(global.joining);
  const Inside now;
  if (Forked()) return NotInitialised();
  if (Current()) return Status::Ok();
  HORON_ASSIGN(global.config, ReadConfig());
  const Config& config = global.config;
  const int rank = static_cast<int>(std::max<int64_t>(0, config.rank));
  HORON_TRY(ConfigureLog(config.log, rank, config.log_time));
  if (global.process.generation == 0) {
    pthread_atfork(nullptr, nullptr, [] {
      The().forked.store(true, std::memory_order_relaxed);
      CloseInChild();
    });
    std::atexit(AtExit);
  }
  HORON_ASSIGN(std::unique_ptr<Job> job, Join(global.config, global.process));
  HORON_TRY(ConfigureLog(config.log, job->runtime->rank(), config.log_time));
  if (job->runtime->rank() == 0) {
    for (const std::string& sentence : IdleVariables()) Log(LogLevel::kWarn, "runtime", sentence);
  }
  Status begun = job->runtime->StartConfiguredTimeline();
  if (begun.ok()) begun = job->runtime->StartConfiguredTuning();
  if (!begun.ok()) EndJob(std::move(job));
  HORON_TRY(begun);
  MutexLock lock(global.mutex);
  global.life.fetch_add(1, std::memory_order_relaxed);
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
    if (Forked() || inside) return Status::Ok();
    MutexLock joining(The().joining);
    const Inside now;
    std::shared_ptr<Job> job;
    {
      MutexLock lock(The().mutex);
      job = std::exchange(The().job, nullptr);
    }
    if (job && !EndJob(std::move(job)))
      The().left_behind.store(Life(), std::memory_order_release);
    return Status::Ok();
  });
}

void horon_abandon(const char* what) {
  const auto job = Current();
  if (!job || what == nullptr) return;
  job->watch->SayLost(what);
  job->runtime->GiveUp(what);
}

horon_look horon_set_look(horon_look look) { return SetLook(look); }
void horon_look_works(void) { LookWorks(); }

int horon_is_initialized(void) { return Current() != nullptr ? 1 : 0; }
const char* horon_last_error(void) { return LastError().c_str(); }
const char* horon_version(void) { return HORON_VERSION; }

int horon_mpi_available(void) {
  const int code = Guard([]() -> Status {
    if (inside) return Status::Aborted("an init or shutdown is under way");
    MutexLock joining(The().joining);
    HORON_ASSIGN(const Config config, ReadConfig());
    return The().process.mpi.Open(config);
  });
  return code == HORON_OK ? 1 : 0;
}

int horon_check_settings(const char* (*get)(const char*)) {
  return Guard([get] { return (get != nullptr ? ReadConfig(get) : ReadConfig()).status(); });
}

int horon_cuda_built(void) { return GpuPlugin::built() ? 1 : 0; }

void horon_gpu_parts(void (*visit)(const char*, int, const char*, void*), void* user) {
  const Result<Config> config = ReadConfig();
  const Result<GpuDriver*> driver =
      config.ok() ? The().process.gpu.Open(config.value()) : config.status();
  if (!driver.ok()) {
    for (const char* part : {"driver", "nccl", "cublas"})
      visit(part, 0, driver.status().message().c_str(), user);
    return;
  }
  const GpuDriver& found = *driver.value();
  const std::string text = std::to_string(found.devices()) + " GPUs, " + found.version();
  visit("driver", found.devices(), text.c_str(), user);
  visit("nccl", found.nccl().version, found.nccl().text.c_str(), user);
  visit("cublas", found.cublas().version, found.cublas().text.c_str(), user);
}

int horon_join(horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(std::shared_ptr<Work> made, SubmitJoin(runtime));
    *work = Handle(made);
    return Status::Ok();
  });
}

int horon_submit(const horon_request* request, horon_work** work) {
  return Enqueue({request, 1}, nullptr, true, work);
}

int horon_begin(const horon_request* request, horon_work** work) {
  return Enqueue({request, 1}, nullptr, false, work);
}

int horon_submit_group(const horon_request* requests, int count, const char* group,
                       horon_work** work) {
  const size_t some = static_cast<size_t>(std::max(0, count));
  return Enqueue({requests, some}, group != nullptr ? group : "", true, work);
}

int horon_register(const horon_request* request, horon_tensor** tensor) {
  return Guard([&]() -> Status {
    HORON_ASSIGN(Request made, ReadRequest(*request));
    *tensor = new horon_tensor(std::move(made), request->stream);
    return Status::Ok();
  });
}

int horon_register_group(const horon_request* requests, int count, const char* group,
                         horon_tensor** tensors) {
  return Guard([&]() -> Status {
    const size_t some = static_cast<size_t>(std::max(0, count));
    HORON_ASSIGN(auto made, ReadGroup({requests, some}, group != nullptr ? group : ""));
    for (size_t i = 0; i < made.size(); ++i)
      tensors[i] = new horon_tensor(std::move(made[i]), requests[i].stream);
    return Status::Ok();
  });
}

void horon_tensor_release(horon_tensor* tensor) { delete tensor; }

int horon_start(horon_tensor* tensor, const void* input, void* output, int will_wait,
                horon_work** work) {
  return StartAll({&tensor, 1}, &input, &output, will_wait == 0, work);
}

int horon_start_all(horon_tensor* const* tensors, const void* const* inputs, void* const* outputs,
                    int count, int will_wait, horon_work** work) {
  return StartAll({tensors, static_cast<size_t>(std::max(0, count))}, inputs, outputs,
                  will_wait == 0, work);
}

int horon_start_into(horon_tensor* tensor, const void* input, void* output, horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    if (*work != nullptr) {
      if ((*work)->life != Life())
        return Status::Aborted("a work that was begun before Horon was shut down takes no tensors");
      return StartInto(runtime, *tensor, input, output, (*work)->self);
    }
    const auto made = MakeWork(Work::Gathers());
    HORON_TRY(StartInto(runtime, *tensor, input, output, made));
    *work = Handle(made);
    return Status::Ok();
  });
}

void horon_work_close(horon_work* work) { work->Close(); }

int horon_run(const horon_request* request, horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(std::shared_ptr<Work> made, Submit(runtime, {request, 1}, nullptr, false));
    HORON_TRY(runtime.WaitToEnd(*made));
    if (request->device >= 0) HORON_TRY(made->HoldBack(request->stream));
    if (work != nullptr) *work = Handle(made);
    return Status::Ok();
  });
}

int horon_work_done(const horon_work* work) {
  if (work->done() || Forked() || LeftBehind(*work)) return 1;
  const std::shared_ptr<Job> job = Current();
  if (!job) return 0;
  job->runtime->Nudge();
  return job->runtime->without_hope() ? 1 : 0;
}

int horon_work_wait(horon_work* work, int timeout_ms) {
  const auto limit = timeout_ms < 0
                         ? std::chrono::nanoseconds::max()
                         : std::chrono::nanoseconds(std::chrono::milliseconds(timeout_ms));
  Work& w = *work;
  Work::NoteWait();
  if (w.done() && w.status().ok()) return HORON_OK;
  if (!w.done() && Forked()) return Fail(NotInitialised());
  const std::shared_ptr<Job> job = LeftBehind(*work) ? nullptr : Current();
  if (job ? job->runtime->Wait(w, limit, true) : WaitForTheEnd(*work, limit))
    return Fail(w.status());
  if (LeftBehind(*work)) {
    return Fail(Status::Aborted(
        "Horon was shut down while its runtime was stuck, and this tensor was left behind with "
        "it"));
  }
  const Status hopeless = job ? job->runtime->hopeless() : Status::Ok();
  return hopeless.ok() ? HORON_WAIT_TIMEOUT : Fail(hopeless);
}

int horon_work_wait_all(horon_work* const* works, int count) {
  std::vector<Work*> pending;
  for (int i = 0; i < count; ++i) {
    if (!works[i]->done() && !Forked() && !LeftBehind(*works[i])) pending.push_back(works[i]);
  }
  const std::shared_ptr<Job> job = pending.size() > 1 ? Current() : nullptr;
  if (job && !job->runtime->Wait(pending, std::chrono::nanoseconds::max(), true) &&
      !job->runtime->without_hope()) {
    return HORON_WAIT_TIMEOUT;
  }
  int first = HORON_OK;
  std::string message;
  for (int i = 0; i < count; ++i) {
    const int code = horon_work_wait(works[i], -1);
    if (code == HORON_WAIT_TIMEOUT) return code;  // the program has broken it off
    if (code == HORON_OK || first != HORON_OK) continue;
    first = code;
    message = LastError();
  }
  if (first != HORON_OK) LastError() = message;
  return first;
}

void horon_work_release(horon_work* work) {
  // In a forked child a lock of the pool may be held by a thread that does not exist there: leak.
  if (work == nullptr || Forked()) return;
  if (work->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    if (work->done()) work->DropOutputs();
    const auto last = std::move(work->self);  // if the runtime has no part in it any more
  }
}

}  // extern "C"
