// Tensors of a GPU through the C API, on any number of ranks, with a CUDA plugin of fake GPUs that
// is opened as the real one is (test/support/fake_cuda.h): what a program sees of submitting,
// waiting and streams. Without NCCL, which has no fake between processes: two ranks go through the
// host.
#include <dlfcn.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/include/horon/horon.h"
#include "runtime/plugin_library.h"
#include "test/support/catch.h"
#include "test/support/fake_cuda.h"

namespace {

using Values = std::vector<float>;

constexpr int kLongestMs = 60'000;
constexpr const char* kTooEarly = "without an event between";

const FakeCuda& Cuda() {
  static const FakeCuda* const cuda = [] {
    void* const plugin =
        dlopen(horon::PluginPath("libhoron_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(plugin != nullptr);
    auto* const get = reinterpret_cast<HoronFakeCudaFn*>(dlsym(plugin, kFakeCudaSymbol));
    REQUIRE(get != nullptr);
    return get();
  }();
  return *cuda;
}

std::string Complaint() { return Cuda().complaint(); }

bool LastErrorSays(const std::string& what) {
  INFO(horon_last_error());
  const bool says = std::string(horon_last_error()).find(what) != std::string::npos;
  CHECK(says);
  return says;
}

// The job, in which no stream may have read or written too early.
class Job {
 public:
  Job() { REQUIRE(horon_init() == HORON_OK); }
  ~Job() {
    CHECK(horon_shutdown() == HORON_OK);
    CHECK(Complaint() == "");
  }
};

// In the device's memory, written by `stream`.
struct Tensor {
  Tensor(const Values& values, void* stream)
      : count(static_cast<int64_t>(values.size())),
        at(Cuda().memory(static_cast<int64_t>(sizeof(float)) * count)) {
    Cuda().write(stream, at, values.data(), static_cast<int64_t>(sizeof(float)) * count);
  }
  int64_t count;
  void* at;
};

Values Read(const void* at, int64_t count, void* stream) {
  Values values(static_cast<size_t>(count), -1.0F);
  Cuda().read(stream, values.data(), at, static_cast<int64_t>(sizeof(float)) * count);
  return values;
}

Values Read(const Tensor& tensor, void* stream) { return Read(tensor.at, tensor.count, stream); }

// An output of the work's own, all its rows in one.
Values ReadOutput(const horon_work* work, int64_t count, void* stream) {
  return Read(horon_work_output(work, 0), count, stream);
}

horon_request RequestOf(const char* name, const char* op, const Tensor& tensor, void* output,
                        void* stream) {
  horon_request request = {};
  request.struct_bytes = sizeof(request);
  request.name = name;
  request.op = op;
  request.dtype = HORON_FLOAT32;
  request.device = 0;
  request.shape = &tensor.count;
  request.ndim = 1;
  request.input = tensor.at;
  request.output = output;
  request.stream = stream;
  return request;
}

// Rank r's is r + 1 everywhere.
Values Own(int64_t count) {
  return Values(static_cast<size_t>(count), static_cast<float>(horon_rank() + 1));
}
Values Sum(int64_t count) {
  const int n = horon_size();
  return Values(static_cast<size_t>(count), static_cast<float>(n * (n + 1) / 2));
}
bool Alone() { return horon_size() == 1; }

void Settle(const horon_work* work) {
  while (horon_work_settled(work) == 0) std::this_thread::yield();
}

TEST_CASE("the driver, and what it lacks, is reported from the plugin") {
  std::string parts;
  horon_gpu_parts(
      [](const char* part, int version, const char* text, void* user) {
        *static_cast<std::string*>(user) +=
            std::string(part) + (version > 0 ? "+ " : "- ") + text + "; ";
      },
      &parts);
  CAPTURE(parts);
  REQUIRE(parts.find("driver+ ") != std::string::npos);
  REQUIRE(parts.find("no cuBLAS with a fake driver") != std::string::npos);
}

TEST_CASE("who waits for a tensor of a GPU waits for no device, and a stream comes behind it") {
  const Job job;
  void* const mine = Cuda().stream();
  void* const other = Cuda().stream();
  for (const int64_t count : {1, 1000, 300'000}) {
    CAPTURE(count);
    if (Alone()) Cuda().hold(mine);  // between ranks a message waits for the copy to the host
    const Tensor tensor(Own(count), mine);
    const Tensor out(Values(static_cast<size_t>(count), 0.0F), mine);
    const horon_request request = RequestOf("waited for", "sum", tensor, out.at, mine);
    horon_work* work = nullptr;
    REQUIRE(horon_submit(&request, &work) == HORON_OK);
    REQUIRE(horon_work_wait(work, kLongestMs) == HORON_OK);
    if (Alone()) {
      REQUIRE(horon_work_settled(work) == 0);
      Read(out, other);
      REQUIRE(Complaint().find(kTooEarly) != std::string::npos);
    }
    REQUIRE(horon_work_hold_back(work, other) == HORON_OK);
    if (Alone()) Cuda().release(mine);
    REQUIRE(Read(out, other) == Sum(count));
    Settle(work);
    horon_work_release(work);
  }
}

TEST_CASE("horon_run puts the tensor's own stream behind the output") {
  const Job job;
  void* const mine = GENERATE(false, true) ? nullptr : Cuda().stream();
  constexpr int64_t kCount = 700;
  if (Alone()) Cuda().hold(mine);
  const Tensor tensor(Own(kCount), mine);
  horon_request request = RequestOf("run", "sum", tensor, tensor.at, mine);
  REQUIRE(horon_run(&request, nullptr) == HORON_OK);
  if (Alone()) Cuda().release(mine);
  REQUIRE(Read(tensor, mine) == Sum(kCount));

  const Tensor again(Own(kCount), mine);
  if (Alone()) Cuda().hold(mine);
  request = RequestOf("run", "allgather", again, nullptr, mine);
  horon_work* work = nullptr;
  REQUIRE(horon_run(&request, &work) == HORON_OK);
  if (Alone()) Cuda().release(mine);
  Values expected;
  for (int r = 0; r < horon_size(); ++r) expected.insert(expected.end(), kCount, float(r + 1));
  REQUIRE(*horon_work_output_shape(work, 0) == kCount * horon_size());
  REQUIRE(ReadOutput(work, kCount * horon_size(), mine) == expected);
  horon_work_release(work);
}

TEST_CASE("each op has tensors of a GPU, beside tensors of the host in one job") {
  const Job job;
  void* const mine = Cuda().stream();
  const int n = horon_size();
  const int64_t count = 12 * n;
  const auto last = static_cast<float>(n), own = static_cast<float>(horon_rank() + 1);
  Values by_rank, mean(static_cast<size_t>(count), (last + 1) / 2);
  for (int r = 0; r < n; ++r) by_rank.insert(by_rank.end(), 12, float(r + 1));
  Values gathered;
  for (int r = 0; r < n; ++r)
    gathered.insert(gathered.end(), static_cast<size_t>(count), float(r + 1));
  const auto all = [&](float value) { return Values(static_cast<size_t>(count), value); };
  float product = 1;
  for (int r = 0; r < n; ++r) product *= float(r + 1);
  const std::vector<std::pair<const char*, Values>> ops = {
      {"sum", Sum(count)},       {"average", mean},
      {"min", all(1)},           {"max", all(last)},
      {"product", all(product)}, {"broadcast:root=0", all(1)},
      {"allgather", gathered},   {"alltoall", by_rank},
      {"reduce_scatter", Sum(12)}};
  for (const auto& [op, expected] : ops) {
    CAPTURE(op);
    const Tensor tensor(Own(count), mine);
    horon_request request = RequestOf(op, op, tensor, nullptr, mine);
    horon_work* work = nullptr;
    REQUIRE(horon_submit(&request, &work) == HORON_OK);

    float on_host = own;
    horon_request host = RequestOf("on the host", "sum", tensor, &on_host, nullptr);
    host.device = -1;
    host.ndim = 0;
    host.input = &on_host;
    REQUIRE(horon_run(&host, nullptr) == HORON_OK);
    REQUIRE(on_host == last * (last + 1) / 2);

    REQUIRE(horon_work_wait(work, kLongestMs) == HORON_OK);
    REQUIRE(horon_work_hold_back(work, mine) == HORON_OK);
    REQUIRE(ReadOutput(work, static_cast<int64_t>(expected.size()), mine) == expected);
    horon_work_release(work);
  }
}

TEST_CASE("groups and registered tensors of a GPU") {
  const Job job;
  void* const mine = Cuda().stream();
  const Tensor first(Own(5), mine), second(Own(70'000), mine);
  const horon_request both[] = {RequestOf("first", "sum", first, first.at, mine),
                                RequestOf("second", "sum", second, second.at, mine)};
  horon_work* work = nullptr;
  REQUIRE(horon_submit_group(both, 2, "both", &work) == HORON_OK);
  REQUIRE(horon_work_wait_all(&work, 1) == HORON_OK);
  REQUIRE(horon_work_hold_back(work, mine) == HORON_OK);
  REQUIRE(Read(first, mine) == Sum(5));
  REQUIRE(Read(second, mine) == Sum(70'000));
  horon_work_release(work);

  horon_tensor* tensor = nullptr;
  REQUIRE(horon_register(&both[0], &tensor) == HORON_OK);
  for (int step = 0; step < 4; ++step) {
    const Tensor in(Own(5), mine);
    REQUIRE(horon_start(tensor, in.at, in.at, step % 2, &work) == HORON_OK);
    REQUIRE(horon_work_wait(work, kLongestMs) == HORON_OK);
    REQUIRE(horon_work_hold_back(work, mine) == HORON_OK);
    REQUIRE(Read(in, mine) == Sum(5));
    horon_work_release(work);
  }
  work = nullptr;
  REQUIRE(horon_start_into(tensor, first.at, first.at, &work) == HORON_INVALID_ARGUMENT);
  REQUIRE(work == nullptr);
  horon_tensor_release(tensor);
}

TEST_CASE("a second GPU, one that is not there and a captured stream are refused, and no more") {
  const Job job;
  void* const mine = Cuda().stream();
  const Tensor tensor(Own(3), mine), other(Own(3), mine);
  horon_work* work = nullptr;
  const auto refused = [&](int device, int code, const std::string& why) {
    horon_request request = RequestOf("refused", "sum", tensor, tensor.at, mine);
    request.device = device;
    REQUIRE(horon_submit(&request, &work) == code);
    REQUIRE(LastErrorSays(why));
    REQUIRE(horon_run(&request, nullptr) == code);
    REQUIRE(LastErrorSays("tensor 'refused': "));
  };
  refused(7, HORON_INVALID_ARGUMENT, "this process sees 2 GPUs");
  Cuda().capture(mine, 1);
  refused(0, HORON_UNSUPPORTED, "captured into a CUDA graph");
  Cuda().capture(mine, 0);
  refused(1, HORON_INVALID_ARGUMENT, "a rank works with one GPU");

  horon_request both[] = {RequestOf("on one", "sum", tensor, tensor.at, mine),
                          RequestOf("on another", "sum", other, other.at, mine)};
  both[1].device = 1;
  REQUIRE(horon_submit_group(both, 2, "of two", &work) == HORON_INVALID_ARGUMENT);
  REQUIRE(LastErrorSays("tensor 'on another': "));
  REQUIRE(LastErrorSays("a rank works with one GPU"));
  both[1].device = 0;  // nothing of the group was enqueued: its names are free
  REQUIRE(horon_submit_group(both, 2, "of two", &work) == HORON_OK);
  REQUIRE(horon_work_wait(work, kLongestMs) == HORON_OK);
  REQUIRE(horon_work_hold_back(work, mine) == HORON_OK);
  REQUIRE(Read(other, mine) == Sum(3));
  horon_work_release(work);
}

TEST_CASE("a tensor on the host of one rank and on the GPU of others is an error everywhere") {
  const Job job;
  if (Alone()) return;  // there are no others
  void* const mine = Cuda().stream();
  const Tensor tensor(Own(3), mine);
  Values on_host = Own(3);
  horon_request request = RequestOf("somewhere", "sum", tensor, tensor.at, mine);
  if (horon_rank() == 0) {
    request.device = -1;
    request.input = request.output = on_host.data();
  }
  REQUIRE(horon_run(&request, nullptr) == HORON_INVALID_ARGUMENT);
  REQUIRE(LastErrorSays("tensor 'somewhere': rank [0] has CPU, rank"));
  REQUIRE(LastErrorSays(horon_size() == 2 ? "[1] has GPU" : "[1, 2] have GPU"));
  request = RequestOf("somewhere", "sum", tensor, tensor.at, mine);
  REQUIRE(horon_run(&request, nullptr) == HORON_OK);
  REQUIRE(Read(tensor, mine) == Sum(3));
}

TEST_CASE("a window of values on a GPU: orders come behind the stream, and it behind them") {
  const Job job;
  void* const mine = Cuda().stream();
  const int n = horon_size();
  const int left = (horon_rank() + n - 1) % n, right = (horon_rank() + 1) % n;
  const int neighbors = Alone() ? 0 : 1;
  const Tensor values(Own(2000), mine);
  horon_window_spec spec = {};
  spec.struct_bytes = sizeof(spec);
  spec.name = "window";
  spec.dtype = HORON_FLOAT32;
  spec.device = 0;
  spec.shape = &values.count;
  spec.ndim = 1;
  spec.values = values.at;
  spec.in = &left;
  spec.out = &right;
  spec.in_count = spec.out_count = neighbors;
  spec.zero = 1;
  spec.stream = mine;
  horon_window* window = nullptr;
  REQUIRE(horon_window_create(&spec, &window) == HORON_OK);

  const auto start = [&](int act, const int* rank, double self) {
    const double weight = 0.5;
    horon_window_order order = {};
    order.struct_bytes = sizeof(order);
    order.act = act;
    order.ranks = rank;
    order.weights = &weight;
    order.count = neighbors;
    order.self_weight = self;
    order.stream = mine;
    horon_work* work = nullptr;
    REQUIRE(horon_window_start(window, &order, 1, &work) == HORON_OK);
    REQUIRE(horon_work_wait(work, kLongestMs) == HORON_OK);
    REQUIRE(horon_work_hold_back(work, mine) == HORON_OK);
    horon_work_release(work);
  };
  start(HORON_WINDOW_PUT, &right, 1.0);
  if (!Alone()) {
    while (horon_window_deliveries(window, left) == 0) std::this_thread::yield();
  }
  start(HORON_WINDOW_UPDATE, &left, 0.5);
  const float own = static_cast<float>(horon_rank() + 1) / 2;
  const float theirs = Alone() ? 0 : static_cast<float>(left + 1) / 4;
  REQUIRE(Read(values, mine) == Values(2000, own + theirs));
  REQUIRE(horon_window_free(window) == HORON_OK);
  horon_window_release(window);
}

// --- each in a process of its own: variables, and a GPU that stays lost

void ExpectRefused(int code, const std::string& why) {
  const Job job;
  const Tensor tensor(Own(3), nullptr);
  const horon_request request = RequestOf("refused", "sum", tensor, tensor.at, nullptr);
  REQUIRE(horon_run(&request, nullptr) == code);
  REQUIRE(LastErrorSays(why));
}

TEST_CASE("HORON_ADASUM_KERNEL=cublas asks for cuBLAS", "[.][cublas]") {
  ExpectRefused(HORON_UNSUPPORTED,
                "HORON_ADASUM_KERNEL=cublas, but there is no cuBLAS that it could use: no cuBLAS "
                "with a fake driver");
}

TEST_CASE("HORON_INTER=nccl asks for NCCL", "[.][inter]") {
  ExpectRefused(HORON_UNSUPPORTED,
                "HORON_INTER=nccl, but there is no NCCL that it could use: no NCCL with a fake "
                "driver");
}

TEST_CASE("HORON_NCCL_* come to the groups that are made", "[.][groups]") {
  REQUIRE(horon_init() == HORON_OK);
  REQUIRE(horon_size() > 1);
  const Tensor tensor(Own(3), nullptr);
  const horon_request request = RequestOf("told", "sum", tensor, tensor.at, nullptr);
  REQUIRE(horon_run(&request, nullptr) == HORON_UNAVAILABLE);
  REQUIRE(LastErrorSays("a group of 2: 7000 ms, 5 blocks, registered 2"));
  REQUIRE(horon_shutdown() == HORON_OK);
}

TEST_CASE("HORON_NCCL=0 makes no group", "[.][off]") {
  const Job job;
  REQUIRE(horon_size() > 1);
  const Tensor tensor(Own(3), nullptr);
  const horon_request request = RequestOf("through the host", "sum", tensor, tensor.at, nullptr);
  REQUIRE(horon_run(&request, nullptr) == HORON_OK);
  REQUIRE(Read(tensor, nullptr) == Sum(3));
}

TEST_CASE("a GPU that is lost ends the job with its words, not the process", "[.][lost]") {
  const std::string words = "an illegal memory access was encountered";
  REQUIRE(horon_init() == HORON_OK);
  void* const mine = Cuda().stream();
  const Tensor tensor(Own(3), mine);
  horon_request request = RequestOf("before", "sum", tensor, tensor.at, mine);
  REQUIRE(horon_run(&request, nullptr) == HORON_OK);
  REQUIRE(Read(tensor, mine) == Sum(3));
  // Who is through with this one may lose its GPU: all are through with the one before.
  request.name = "between";
  if (horon_run(&request, nullptr) != HORON_OK) REQUIRE(LastErrorSays(words));
  Cuda().lose(words.c_str());
  request.name = "after";
  REQUIRE(horon_run(&request, nullptr) == HORON_UNAVAILABLE);
  REQUIRE(LastErrorSays(words));
  const bool alone = Alone();
  horon_shutdown();
  // A job of several ranks has failed: news of it may come to a rank that has begun another.
  if (!alone) return;

  REQUIRE(horon_init() == HORON_OK);  // the host's tensors need no GPU
  float on_host = 1;
  horon_request host = request;
  host.device = -1;
  host.ndim = 0;
  host.input = host.output = &on_host;
  REQUIRE(horon_run(&host, nullptr) == HORON_OK);
  REQUIRE(on_host == static_cast<float>(horon_size()));
  REQUIRE(horon_run(&request, nullptr) == HORON_UNAVAILABLE);
  REQUIRE(LastErrorSays(words));
  horon_shutdown();
}

}  // namespace
