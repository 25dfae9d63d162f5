// From a call to the device's part of it, on one rank: Horon beside the same raw call of NCCL,
// whose communicator blocks or does not.
//
// All times are the host's, of one clock: from before the call until the host sees what a small
// kernel behind the call's work has written to pinned memory. What that kernel takes by itself is
// measured, too; a difference of two such times is what lies between. The ways take turns, each
// with an idle device.
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/include/horon/horon.h"
#include "runtime/transport/nccl.h"
#include "test/bench/gpu/gpu_bench.h"
#include "test/bench/gpu/loops.h"

namespace horon::bench {
namespace {

constexpr int kTurns = 520, kFirst = 20;  // the first ones do not count
constexpr std::chrono::seconds kLost{20};
constexpr std::chrono::milliseconds kPause{1};
using BenchClock = std::chrono::steady_clock;

void MustHoron(int code, const char* what) {
  if (code == HORON_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, horon_last_error());
  std::exit(1);
}

void Pause() { std::this_thread::sleep_for(kPause); }

// A stream of the program's, two numbers on the device and the word that kernels write to.
struct Place {
  Place() {
    Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    void *on_device = nullptr, *pinned = nullptr;
    Must(cudaMalloc(&on_device, 2 * sizeof(int)), "allocate");
    Must(cudaHostAlloc(&pinned, sizeof(int), cudaHostAllocPortable), "allocate");
    in = static_cast<int*>(on_device);
    out = in + 1;
    seen = static_cast<int*>(pinned);
  }
  void Wait(int value) const {
    const auto begun = BenchClock::now();
    for (int i = 0; *static_cast<volatile int*>(seen) != value; ++i) {
      if (i % 4096 == 0 && BenchClock::now() - begun > kLost) {
        std::fprintf(stderr, "a kernel has not come\n");
        std::exit(1);
      }
    }
  }
  cudaStream_t stream = nullptr;
  int *in = nullptr, *out = nullptr, *seen = nullptr;
};

struct Way {
  std::string name;
  std::function<void(int turn)> call;   // until it is enqueued
  std::function<void()> after = [] {};  // not measured
  cudaStream_t stamped = nullptr;       // the stream behind it; null: its kernel writes by itself
  std::function<void()> before = [] {};  // not measured
  std::vector<double> seconds = {};
};

void TakeTurns(const Place& place, std::vector<Way>& ways) {
  for (int turn = 1; turn <= kTurns; ++turn) {
    Must(cudaMemcpy(place.in, &turn, sizeof turn, cudaMemcpyHostToDevice), "copy");
    for (Way& way : ways) {
      Must(cudaDeviceSynchronize(), "wait");
      way.before();
      Must(cudaDeviceSynchronize(), "wait");
      *place.seen = 0;
      const auto begin = BenchClock::now();
      way.call(turn);
      if (way.stamped != nullptr) Must(Stamp(place.seen, turn, way.stamped), "stamp");
      place.Wait(turn);
      const std::chrono::duration<double> took = BenchClock::now() - begin;
      way.after();
      if (turn > kFirst) way.seconds.push_back(took.count());
    }
  }
}

void Print(const Way& way) {
  std::printf("{\"name\": \"%s\", \"samples\": [", way.name.c_str());
  for (size_t i = 0; i < way.seconds.size(); ++i)
    std::printf("%s%.9f", i == 0 ? "" : ", ", way.seconds[i]);
  std::printf("]}\n");
}

horon_request RequestOf(const Place& place, void* output) {
  static const int64_t shape[] = {1};
  horon_request request{};
  request.struct_bytes = sizeof request;
  request.name = "bench";
  request.op = "sum";
  request.dtype = HORON_INT32;
  request.shape = shape;
  request.ndim = 1;
  request.device = 0;
  request.input = place.in;
  request.output = output;
  request.stream = place.stream;
  return request;
}

// The kernel of a sum of one rank by itself, and a stream that is put behind the work, which goes
// through the runtime's stream, or the caller's. The first shortly after another one that was
// waited for, and after a pause, when all sleep.
void AddHoron(const Place& place, std::vector<Way>& ways) {
  static horon_work* work = nullptr;
  const auto end = [] {
    MustHoron(horon_work_wait(work, -1), "wait");
    horon_work_release(work);
  };
  const auto submit = [&place](int) {
    const horon_request request = RequestOf(place, place.seen);
    MustHoron(horon_submit(&request, &work), "submit");
  };
  const auto another = [submit, end] {
    submit(0);
    end();
  };
  ways.push_back({"Horon's kernel", submit, end, nullptr, another});
  ways.push_back({"Horon's kernel, after a pause", submit, end, nullptr, Pause});
  ways.push_back({"Horon, submitted and waited for",
                  [&place](int) {
                    const horon_request request = RequestOf(place, place.out);
                    MustHoron(horon_submit(&request, &work), "submit");
                    MustHoron(horon_work_wait(work, -1), "wait");
                    MustHoron(horon_work_hold_back(work, place.stream), "hold back");
                  },
                  end, place.stream, another});
  ways.push_back({"Horon, run",
                  [&place](int) {
                    const horon_request request = RequestOf(place, place.out);
                    MustHoron(horon_run(&request, &work), "run");
                    MustHoron(horon_work_hold_back(work, place.stream), "hold back");
                  },
                  end, place.stream});
}

// NCCL as everybody calls it, with a communicator of one rank.
class RawNccl {
 public:
  RawNccl(const NcclLibrary& nccl, bool blocking) : nccl_(nccl), blocking_(blocking) {
    NcclUniqueId id{};
    Check(nccl_.GetUniqueId(&id), "make an id");
    NcclConfig config;
    config.blocking = blocking ? 1 : 0;
    Check(nccl_.CommInitRankConfig(&comm_, 1, id, 0, &config), "begin a communicator");
    Settle();
  }
  ~RawNccl() { nccl_.CommAbort(comm_); }
  RawNccl(const RawNccl&) = delete;
  RawNccl& operator=(const RawNccl&) = delete;

  void Sum(const Place& place) {
    Check(nccl_.AllReduce(place.in, place.out, 1, kNcclInt32, kNcclSum, comm_, place.stream),
          "sum");
    Settle();
  }
  // To itself: newer NCCLs have no group for the sum of one rank, and one for this.
  void Exchange(const Place& place) {
    Check(nccl_.GroupStart(), "begin a group");
    Check(nccl_.Send(place.in, sizeof(int), kNcclUint8, 0, comm_, place.stream), "send");
    Check(nccl_.Recv(place.out, sizeof(int), kNcclUint8, 0, comm_, place.stream), "receive");
    Check(nccl_.GroupEnd(), "end a group");
    Settle();
  }
  std::string name() const { return blocking_ ? "NCCL, blocking" : "NCCL, not blocking"; }

 private:
  void Check(NcclAnswer answer, const char* what) { Must(nccl_.Check(answer, what), "NCCL"); }
  void Settle() {
    NcclAnswer state = blocking_ ? kNcclSuccess : kNcclInProgress;
    while (state == kNcclInProgress) {
      Check(nccl_.CommGetAsyncError(comm_, &state), "be asked");
      Check(state, "go on");
    }
  }
  const NcclLibrary& nccl_;
  const bool blocking_;
  NcclComm* comm_ = nullptr;
};

// What Horon's own collectives go through, with a communicator of one rank.
struct OwnGroup {
  OwnGroup(GpuDriver& driver, Gpu& gpu)
      : stream(Must(gpu.MakeStream(PairKernels::kFused), "make a stream")) {
    GpuNetwork& network = *driver.network();
    group = Must(network.Connect(Must(network.MakeId(), "make an id"), 1, 0, gpu.device(), {}),
                 "connect");
    while (!Must(group->Ready(), "meet")) continue;
  }
  void Exchange(const Place& place) {
    const Span in{reinterpret_cast<std::byte*>(place.in), sizeof(int)};
    const Span out{reinterpret_cast<std::byte*>(place.out), sizeof(int)};
    Must(group->Exchange({&in, 1}, {&out, 1}, *stream), "exchange");
  }
  std::unique_ptr<Stream> stream;
  std::unique_ptr<GpuGroup> group;
};

}  // namespace

void MeasureLaunches(GpuDriver& driver, Gpu& gpu, const GpuLibraryPaths& paths) {
  MustHoron(horon_init(), "init");
  Place place;
  std::vector<Way> ways;
  ways.push_back({"a kernel", [](int) {}, [] {}, place.stream});
  ways.push_back({"a kernel, after a pause", [](int) {}, [] {}, place.stream, Pause});
  AddHoron(place, ways);
  const NcclLibrary nccl = OpenNccl(paths);
  std::vector<std::unique_ptr<RawNccl>> raw;
  std::unique_ptr<OwnGroup> own;
  if (driver.network() == nullptr) {
    PrintMissing("NCCL's calls", driver.nccl().text);
  } else {
    for (const bool blocking : {true, false}) {
      raw.push_back(std::make_unique<RawNccl>(nccl, blocking));
      RawNccl* const by = raw.back().get();
      ways.push_back(
          {by->name() + ", sum", [&place, by](int) { by->Sum(place); }, [] {}, place.stream});
      ways.push_back({by->name() + ", exchange", [&place, by](int) { by->Exchange(place); }, [] {},
                      place.stream});
    }
    own = std::make_unique<OwnGroup>(driver, gpu);
    ways.push_back({"Horon's group, exchange",
                    [&place, by = own.get()](int) { by->Exchange(place); }, [] {},
                    static_cast<cudaStream_t>(own->stream->native())});
  }
  TakeTurns(place, ways);
  for (const Way& way : ways) Print(way);
  own.reset();
  raw.clear();
  MustHoron(horon_shutdown(), "shutdown");
}

}  // namespace horon::bench
