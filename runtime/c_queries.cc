// What a program asks about its job, and what it may tell it, through the C API: ranks, process
// sets, counters, the timeline, where the program is. On any thread.
#include <algorithm>

#include "runtime/c_current.h"
#include "runtime/c_error.h"
#include "runtime/c_process_sets.h"
#include "runtime/include/horon/horon.h"
#include "runtime/op/op.h"

namespace horon {
namespace {

template <typename F>
int Query(F&& f) {
  const std::shared_ptr<Job> job = Current();
  return job ? f(*job->runtime) : -1;
}

// A literal, because it must outlive the job.
const char* WayOf(std::string Job::*name) {
  const std::shared_ptr<Job> job = Current();
  for (const char* way : {"shm", "mpi", "shm+mpi", "self"}) {
    if (job && (*job).*name == way) return way;
  }
  return "";
}

int Form(const int* ranks, int count, bool in_time, int* id) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(*id, FormProcessSet(runtime, {ranks, static_cast<size_t>(std::max(0, count))},
                                     in_time));
    return Status::Ok();
  });
}

}  // namespace
}  // namespace horon

using namespace horon;  // NOLINT: this file is part of the namespace's door to C

extern "C" {

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

int64_t horon_gossip_timeout_ms(void) {
  const std::shared_ptr<Job> job = Current();
  return job ? job->runtime->config().gossip_time.count() : -1;
}

const char* horon_controller(void) { return WayOf(&Job::controller); }
const char* horon_transport(void) { return WayOf(&Job::transport); }

int horon_add_process_set(const int* ranks, int count, int* id) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(const int made,
                 AddProcessSet(runtime, {ranks, static_cast<size_t>(std::max(0, count))}));
    if (id != nullptr) *id = made;
    return Status::Ok();
  });
}

int horon_form_process_set(const int* ranks, int count, int* id) {
  return Form(ranks, count, false, id);
}

int horon_form_process_set_in_time(const int* ranks, int count, int* id) {
  return Form(ranks, count, true, id);
}

int horon_remove_process_set(int id) {
  return Command([&](Runtime& runtime) { return RemoveProcessSet(runtime, id); });
}

int horon_process_set_size(int id) {
  return Query([&](Runtime& runtime) { return ProcessSetSize(runtime, id); });
}
int horon_process_set_rank(int id) {
  return Query([&](Runtime& runtime) { return ProcessSetRank(runtime, id); });
}
int horon_process_set_ranks(int id, int* out) {
  return Command([&](Runtime& runtime) { return CopyProcessSet(runtime, id, out); });
}

void horon_describe(void) {
  const auto job = Current();
  if (job) job->runtime->Describe();
}

int horon_await_inquiry(void) {
  std::shared_ptr<Inquiries> inquiries;
  if (const auto job = Current()) inquiries = job->runtime->inquiries();
  return inquiries && inquiries->Await() ? 1 : 0;  // the job may end meanwhile
}
void horon_tell_doing(const char* text) {
  const auto job = Current();
  if (job && text != nullptr) job->runtime->inquiries()->Tell(text);
}

int horon_hands_over(void) {
  const auto job = Current();
  return job ? static_cast<int>(job->runtime->callers().HandsOver()) : 0;
}
void horon_takes_back(int thread) {
  const auto job = Current();
  if (job) job->runtime->callers().TakesBack(static_cast<pid_t>(thread));
}

int64_t horon_counter(const char* name) {
  const auto job = Current();
  if (!job) return 0;
  for (const auto& [key, value] : job->runtime->counters().Snapshot()) {
    if (key == name) return value;
  }
  return 0;
}
void horon_count(const char* name, int64_t n) {
  const auto job = Current();
  if (job) job->runtime->counters()[name].Add(n);
}
void horon_counters(void (*visit)(const char*, int64_t, void*), void* user) {
  const auto job = Current();
  if (!job) return;
  for (const auto& [name, value] : job->runtime->counters().Snapshot())
    visit(name.c_str(), value, user);
}
int horon_start_timeline(const char* path, int mark_cycles, uint64_t first_step,
                         uint64_t end_step) {
  return Command([&](Runtime& runtime) {
    TimelineOrder order;
    order.path = path;
    order.mark_cycles = mark_cycles != 0;
    order.first_step = first_step;
    if (end_step > 0) order.end_step = end_step;
    return runtime.StartTimeline(std::move(order));
  });
}
int horon_stop_timeline(void) {
  return Command([](Runtime& runtime) { return runtime.StopTimeline(); });
}
int horon_note_in_timeline(const char* row, const char* activity, int64_t begun, int64_t ended) {
  const auto job = Current();
  return job && job->runtime->NoteInTimeline({row, activity, begun, ended}) ? 1 : 0;
}
int64_t horon_memory_bytes(void) {
  const auto job = Current();
  return job ? job->runtime->memory_bytes() : 0;
}
int horon_check_reduction(const char* spec) {
  return Guard([&]() -> Status {
    if (spec == nullptr) return Status::InvalidArgument("an op needs a spec, such as \"sum\"");
    return CheckReduction(spec);
  });
}
void horon_knobs(void (*visit)(const char*, int, const char*, void*), void* user) {
  for (const Knob& knob : Knobs()) visit(knob.name, knob.horovod ? 1 : 0, knob.meaning, user);
}

}  // extern "C"
