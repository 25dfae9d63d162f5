// One rank of a cell of the fault matrix (test/python/fault_matrix.py), on the C API alone so that
// it starts in milliseconds. Every rank reduces a large tensor a few times and leaves. The ranks in
// CELL_VICTIMS fail as HORON_FAULT says, or the way an uncaught exception of the program would end
// them: before a call with CELL_RAISE=init|shutdown, or with CELL_RAISE_AT=<step> after submitting
// that step's tensor, once the runtime's own thread stands at the place that HORON_FAULT holds it
// at (fifo CELL_HELD.<rank>). Everybody says what happens when, in seconds of the monotonic clock,
// in the file rank-<rank> of the folder CELL_NOTES, because the output of a host that is cut off is
// lost:
//
//   cell <rank> begin <time> <process>
//   cell <rank> joined|step|raise|left <time>
//   cell <rank> error <time> <code> <sentence>
//
// With CELL_LENDS the waiting call does the work, as far as it can: nobody else is woken for it.
// CELL_OP is another op than sum; with CELL_SHARED the tensor lies in memory that the ranks share.
// The counter CELL_COUNTS must have counted before the fault's step. With CELL_LEAVES steps from
// the fault's on are not of the schedule that the ones before are.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "horon/horon.h"

namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

int rank = -1;

std::FILE* notes = stdout;

void Say(const char* what) {
  std::fprintf(notes, "cell %d %s %.3f\n", rank, what, Now());
  std::fflush(notes);
}

int Error(int code) {
  std::fprintf(notes, "cell %d error %.3f %d %s\n", rank, Now(), code, horon_last_error());
  std::fflush(notes);
  return 3;
}

void OpenNotes() {
  const std::string path = Environment("CELL_NOTES", ".") + ("/rank-" + std::to_string(rank));
  if (std::FILE* file = std::fopen(path.c_str(), "ae")) notes = file;
}

void Raise() {
  Say("raise");
  horon_abandon("raised ValueError: bad batch");
  std::exit(1);
}

void RaiseIn(const char* phase) {
  if (std::strcmp(Environment("CELL_RAISE", ""), phase) == 0) Raise();
}

// Where the runtime's thread of this rank is held: two ranks may raise.
std::string Held() { return Environment("CELL_HELD", "") + ("." + std::to_string(rank)); }

// Waits until the runtime's thread stands in the phase, lets it go on, and raises meanwhile. Goes
// on itself when the work ends before that: another rank's fault has come first.
void RaiseAt(int step, const horon_work* work) {
  if (step > std::atoi(Environment("CELL_RAISE_AT", "-1"))) return;  // it may come sooner
  static pollfd held = {open(Held().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), POLLIN, 0};
  while (poll(&held, 1, 10) == 0) {
    if (horon_work_done(work)) return;
  }
  close(open((Held() + ".go").c_str(), O_WRONLY | O_CLOEXEC));
  Raise();
}

bool Victim() {
  std::stringstream victims(Environment("CELL_VICTIMS", ""));
  for (std::string one; std::getline(victims, one, ',');)
    if (std::atoi(one.c_str()) == rank) return true;
  return false;
}

// Whether all steps are the same, so that the later ones are not negotiated.
bool Steady() { return std::getenv("CELL_STEADY") != nullptr; }

// The first step that may be struck, and how many there are.
int FaultStep() { return Steady() ? 8 : 1; }
int Steps() { return Steady() ? 12 : 4; }

std::string NameOf(int step) {
  if (!Steady()) return "step" + std::to_string(step);
  return std::getenv("CELL_LEAVES") != nullptr && step >= FaultStep() ? "other" : "step";
}

// Whether this is the way that is meant: a node's first rank has counted CELL_COUNTS.
bool Counted() {
  const char* const name = std::getenv("CELL_COUNTS");
  if (name == nullptr || horon_local_rank() != 0 || horon_counter(name) != 0) return true;
  std::fprintf(stderr, "nothing was counted in %s\n", name);
  return false;
}

int Reduce(int step, float* values, int64_t count) {
  const std::string name = NameOf(step);
  horon_request request;
  std::memset(&request, 0, sizeof(request));
  request.struct_bytes = sizeof(request);
  request.name = name.c_str();
  request.op = Environment("CELL_OP", "sum");
  request.dtype = HORON_FLOAT32;
  request.ndim = 1;
  request.shape = &count;
  request.input = request.output = values;
  request.device = -1;
  horon_work* work = nullptr;
  const bool lends = std::getenv("CELL_LENDS") != nullptr;
  if (const int code = (lends ? horon_begin : horon_submit)(&request, &work)) return code;
  RaiseAt(step, work);
  const int code = horon_work_wait(work, -1);
  horon_work_release(work);
  return code;
}

}  // namespace

int main() {
  rank = std::atoi(Environment("HORON_RANK", Environment("OMPI_COMM_WORLD_RANK", "0")));
  if (!Victim()) {
    unsetenv("HORON_FAULT");
    unsetenv("CELL_RAISE");
    unsetenv("CELL_RAISE_AT");
  } else if (std::getenv("CELL_RAISE_AT") != nullptr) {
    std::string plan = Environment("HORON_FAULT", "");
    const std::string shared = Environment("CELL_HELD", "");
    plan.replace(plan.find(shared), shared.size(), Held());
    setenv("HORON_FAULT", plan.c_str(), 1);
  }
  OpenNotes();
  std::fprintf(notes, "cell %d begin %.3f %d\n", rank, Now(), getpid());
  std::fflush(notes);
  RaiseIn("init");
  if (const int code = horon_init()) return Error(code);
  Say("joined");
  const int64_t count = std::atoll(Environment("CELL_COUNT", "4194304"));
  std::vector<float> own(static_cast<size_t>(count), 1);
  horon_shared_memory* memory = nullptr;
  void* values = own.data();
  int shared = 0;
  if (std::getenv("CELL_SHARED") != nullptr) {
    if (const int code = horon_share_memory(count * 4, 0, &memory, &values, &shared))
      return Error(code);
  }
  for (int step = 0; step < Steps(); ++step) {
    if (step == FaultStep() && !Counted()) return 4;
    if (const int code = Reduce(step, static_cast<float*>(values), count)) return Error(code);
    Say("step");
    if (shared != 0 && horon_counter("lane.in_place") == 0) {
      std::fputs("the tensor was not reduced in place\n", stderr);
      return 4;
    }
  }
  RaiseIn("shutdown");
  if (const int code = horon_shutdown()) return Error(code);
  horon_shared_memory_release(memory);
  Say("left");
  return 0;
}
