// One rank of a soak (test/python/soak.py): for SOAK_SECONDS it runs ops, sizes, process sets,
// groups and disagreements in an order drawn by chance, the same on all ranks; also steps of
// registered tensors whose schedule locks, tensors reduced where they lie in memory that comes and
// goes, and windows. The first half of the time is one long life; in the second half it leaves the
// job and joins it again every few rounds. On the C API alone: what grows is the runtime's. Names
// are used again and again, as a training loop does. Each second of the long life, and after each
// short one, a rank says what it holds:
//
//   soak <rank> long|short <seconds> <own memory in KiB> <of malloc in KiB> <in use of the pool in
//        KiB, 0 after a short life, with which its pool has gone> <descriptors> <threads>
//        <shared memory in KiB> <rounds>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "horon/horon.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundsPerShortLife = 10;
// What they take of the pool, four ranks' rows at most, is malloc's: from 4 MiB on it is mapped.
constexpr int64_t kSizes[] = {1, 7, 1000, 4096, 65537, 200000};
constexpr const char* kSpecs[] = {"sum",
                                  "average",
                                  "min",
                                  "max",
                                  "product",
                                  "barrier",
                                  "topk:ratio=0.1",
                                  "dissemination",
                                  "adasum",
                                  "adasum:algo=ring",
                                  "gossip:graph=one_peer_exponential",
                                  "allgather",
                                  "alltoall",
                                  "reduce_scatter",
                                  "broadcast:root=0"};
const Clock::time_point kBegin = Clock::now();

double Seconds() { return std::chrono::duration<double>(Clock::now() - kBegin).count(); }

[[noreturn]] void Die(const std::string& what) {
  std::printf("soak failed on rank %d: %s: %s\n", horon_rank(), what.c_str(), horon_last_error());
  std::fflush(stdout);
  std::_Exit(1);
}

void Must(int code, const std::string& what) {
  if (code != HORON_OK) Die(what);
}

// Of the memory files (memfd) that are mapped: the node's segment and the flight recorder.
long SharedKib() {
  std::ifstream maps("/proc/self/maps");
  long bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    const size_t dash = line.find('-');
    bytes += static_cast<long>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                               std::stoull(line, nullptr, 16));
  }
  return bytes / 1024;
}

// Resident memory that is this process's alone.
long OwnKib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stol(line.substr(8));
  }
  return 0;
}

// What malloc has given out and not got back, but for the runtime's pool, which keeps the most that
// was ever in use at once: exact, where pages come and go in larger pieces.
long MallocKib() {
  const struct mallinfo2 all = mallinfo2();
  return static_cast<long>((all.uordblks + all.hblkhd) - horon_counter("pool.bytes")) / 1024;
}

long Entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

void Report(int rank, const char* life, long rounds) {
  std::printf("soak %d %s %.1f %ld %ld %ld %ld %ld %ld %ld\n", rank, life, Seconds(), OwnKib(),
              MallocKib(), static_cast<long>(horon_counter("pool.taken_bytes") / 1024),
              Entries("/proc/self/fd"), Entries("/proc/self/task"), SharedKib(), rounds);
  std::fflush(stdout);
}

// One tensor: its name says all that must not change between two uses of it.
struct Tensor {
  Tensor(const std::string& op_spec, int64_t elements, int set, double value)
      : name(op_spec + "." + std::to_string(elements) + "." + std::to_string(set)),
        op(op_spec),
        count(elements),
        input(static_cast<size_t>(elements), static_cast<float>(value)),
        output(input.size()) {
    std::memset(&request, 0, sizeof(request));
    request.struct_bytes = sizeof(request);
    request.name = name.c_str();
    request.op = op.c_str();
    request.dtype = HORON_FLOAT32;
    request.device = -1;
    request.shape = &count;
    request.ndim = 1;
    request.input = input.data();
    const bool owned = op == "allgather" || op == "alltoall" || op == "reduce_scatter";
    request.output = owned ? nullptr : output.data();
    request.process_set = set;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  std::string name, op;
  int64_t count;
  std::vector<float> input, output;
  horon_request request;
};

// What a training step reduces: tensors that are registered once, for all lives, and started
// together.
class Model {
 public:
  Model() {
    for (const char* op : {"average", "adasum"}) {
      for (const int64_t size : kSizes) {
        tensors_.push_back(std::make_unique<Tensor>(op, size, 0, 1.0));
        horon_request& request = tensors_.back()->request;
        tensors_.back()->name += ".model";
        request.name = tensors_.back()->name.c_str();
        handles_.emplace_back();
        Must(horon_register(&request, &handles_.back()), "register");
        inputs_.push_back(request.input);
        outputs_.push_back(request.output);
      }
    }
  }
  ~Model() {
    for (horon_tensor* handle : handles_) horon_tensor_release(handle);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  void Step() {
    for (const auto& tensor : tensors_) std::fill(tensor->output.begin(), tensor->output.end(), 0);
    horon_work* work = nullptr;
    Must(horon_start_all(handles_.data(), inputs_.data(), outputs_.data(),
                         static_cast<int>(handles_.size()), 1, &work),
         "start a step");
    Must(horon_work_wait(work, -1), "a step");
    horon_work_release(work);
    const auto right = [](float x) { return std::abs(x - 1.0F) <= 1e-5F; };
    for (const auto& tensor : tensors_)  // all ranks have ones, whose average and Adasum are ones
      if (!std::all_of(tensor->output.begin(), tensor->output.end(), right)) Die("a wrong step");
  }

 private:
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<horon_tensor*> handles_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

class Soak {
 public:
  explicit Soak(double seconds) : seconds_(seconds) {}

  int Run() {
    while (!over_) Live();
    std::printf("soak done %d %ld rounds, %ld lives\n", rank_, rounds_, lives_);
    return 0;
  }

 private:
  // From init to shutdown.
  void Live() {
    Must(horon_init(), "init");
    rank_ = horon_rank();
    size_ = horon_size();
    ++lives_;
    const bool is_long = lives_ == 1;
    if (is_long) Everything();
    for (int i = 0; !over_ && (is_long ? !half_ : i < kRoundsPerShortLife); ++i, ++rounds_) {
      Round();
      if (i % 10 == 0) LookAtClock();
    }
    if (is_long) RequireUsed();
    Must(horon_shutdown(), "shutdown");
    if (!is_long) Report(rank_, "short", rounds_);
  }

  // The ways that a soak should have gone, where there are ranks to go them with.
  void RequireUsed() const {
    std::vector<const char*> ways = {"schedule.locks"};
    if (horon_local_size() == size_) ways.insert(ways.end(), {"lane.in_place", "lane.swapped"});
    for (const char* way : ways)
      if (size_ > 1 && horon_counter(way) == 0) Die(std::string(way) + " is 0");
  }

  void Round() {
    const int kind = Draw(14);
    if (kind < 5) return Burst();
    if (kind < 7) return Group();
    if (kind < 8) return Disagree();
    if (kind < 9) return Subset();
    if (kind < 11) return Train();
    if (kind < 12) return InPlace();
    if (kind < 13) return Window();
    Sum(Sizes(), 0, size_, rank_ + 1.0, size_ * (size_ + 1) / 2.0);
  }

  int Draw(size_t below) { return static_cast<int>(chance_() % below); }

  int64_t Sizes() { return kSizes[Draw(std::size(kSizes))]; }

  using Tensors = std::vector<std::unique_ptr<Tensor>>;

  std::unique_ptr<Tensor> Make(const char* spec, int64_t size) const {
    return std::make_unique<Tensor>(spec, size / size_ * size_ + size_, 0, 1.0);
  }

  // More at once than any later burst: what is kept from now on is kept on purpose, and what comes
  // on top of it later is not.
  void Everything() {
    Tensors tensors;
    for (const char* spec : kSpecs)
      for (const int64_t size : kSizes) tensors.push_back(Make(spec, size));
    for (int turn = 0; turn < 3; ++turn) {
      RunAll(tensors, "everything");
      Train();
      InPlace();
      Window();
    }
  }

  // Several at once, of any kind.
  void Burst() {
    Tensors tensors;
    for (int left = 1 + Draw(8); left > 0; --left) {
      auto tensor = Make(kSpecs[Draw(std::size(kSpecs))], Sizes());
      const auto same = [&](const auto& other) { return other->name == tensor->name; };
      if (std::none_of(tensors.begin(), tensors.end(), same)) tensors.push_back(std::move(tensor));
    }
    RunAll(tensors, "burst");
  }

  static void RunAll(Tensors& tensors, const char* what) {
    std::vector<horon_work*> works;
    for (const auto& tensor : tensors) {
      works.emplace_back();
      Must(horon_submit(&tensor->request, &works.back()), "submit " + tensor->name);
    }
    Must(horon_work_wait_all(works.data(), static_cast<int>(works.size())), what);
    for (horon_work* work : works) horon_work_release(work);
  }

  void Group() {
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<horon_request> requests;
    const int members = 2 + Draw(4);
    for (int i = 0; i < members; ++i) {
      tensors.push_back(std::make_unique<Tensor>("sum", 100 * (i + 1), 0, 1.0));
      requests.push_back(tensors.back()->request);
    }
    horon_work* work = nullptr;
    const std::string name = "group." + std::to_string(members);
    Must(horon_submit_group(requests.data(), members, name.c_str(), &work), "submit " + name);
    Must(horon_work_wait(work, -1), name);
    horon_work_release(work);
  }

  // So many equal steps that their schedule locks; whatever comes next unlocks it.
  void Train() {
    for (int step = 0; step < 20; ++step) model_.Step();
  }

  // Two tensors in memory that all ranks of the node see.
  void InPlace() {
    const int64_t count = 5000;
    const auto bytes = static_cast<int64_t>(2 * count * static_cast<int64_t>(sizeof(float)));
    horon_shared_memory* memory = nullptr;
    void* data = nullptr;
    int shared = 0;
    Must(horon_share_memory(bytes, 0, &memory, &data, &shared), "share_memory");
    auto* const values = static_cast<float*>(data);
    std::fill(values, values + 2 * count, static_cast<float>(rank_ + 1));
    for (const int64_t first : {int64_t{0}, count}) {
      Tensor tensor("sum", count, 0, 0);
      tensor.request.name = first == 0 ? "in_place.0" : "in_place.1";
      tensor.request.input = tensor.request.output = values + first;
      horon_work* work = nullptr;
      Must(horon_run(&tensor.request, &work), "a sum in place");
      horon_work_release(work);
    }
    const float want = static_cast<float>(size_ * (size_ + 1)) / 2;
    if (values[0] != want || values[2 * count - 1] != want) Die("a wrong sum in place");
    horon_shared_memory_release(memory);
  }

  // Round a ring: what I put is what the next one takes.
  void Window() {
    if (size_ == 1) return;
    std::vector<float> values(5000, static_cast<float>(rank_));
    const auto count = static_cast<int64_t>(values.size());
    const int from = (rank_ + size_ - 1) % size_, to = (rank_ + 1) % size_;
    horon_window_spec spec;
    std::memset(&spec, 0, sizeof(spec));
    spec.struct_bytes = sizeof(spec);
    spec.name = "window";
    spec.dtype = HORON_FLOAT32;
    spec.device = -1;
    spec.shape = &count;
    spec.ndim = 1;
    spec.values = values.data();
    spec.in = &from;
    spec.out = &to;
    spec.in_count = spec.out_count = 1;
    spec.zero = 1;
    horon_window* window = nullptr;
    Must(horon_window_create(&spec, &window), "window_create");
    Order(window, HORON_WINDOW_PUT, to, 1.0);
    Sum(1, 0, size_, 1.0, size_);  // all have put
    Order(window, HORON_WINDOW_UPDATE, from, 0.0);
    if (values.front() != static_cast<float>(from) || values.back() != static_cast<float>(from))
      Die("a wrong window");
    Must(horon_window_free(window), "window_free");
    horon_window_release(window);
  }

  static void Order(horon_window* window, horon_window_act act, int rank, double self_weight) {
    horon_window_order order;
    std::memset(&order, 0, sizeof(order));
    order.struct_bytes = sizeof(order);
    order.act = act;
    order.ranks = &rank;
    order.count = 1;
    order.self_weight = self_weight;
    horon_work* work = nullptr;
    Must(horon_window_start(window, &order, 1, &work), "window_start");
    Must(horon_work_wait(work, -1), "an order of a window");
    horon_work_release(work);
  }

  // Rank 0 has another length; all are told, and go on.
  void Disagree() {
    Tensor tensor("max", 50, 0, 1.0);
    tensor.request.name = "disagreement";
    if (rank_ == 0) tensor.count = 49;
    horon_work* work = nullptr;
    Must(horon_submit(&tensor.request, &work), "submit disagreement");
    if (horon_work_wait(work, -1) == HORON_OK) Die("a disagreement was not noticed");
    horon_work_release(work);
  }

  // A process set that comes, is used and goes.
  void Subset() {
    const int without = Draw(static_cast<size_t>(size_));
    std::vector<int> ranks;
    double want = 0;
    for (int r = 0; r < size_; ++r) {
      if (r == without && size_ > 1) continue;
      ranks.push_back(r);
      want += r + 1;
    }
    int set = 0;
    const int members = static_cast<int>(ranks.size());
    Must(horon_add_process_set(ranks.data(), members, &set), "add_process_set");
    const int64_t count = Sizes();
    if (rank_ != without || size_ == 1) Sum(count, set, members, rank_ + 1.0, want);
    Must(horon_remove_process_set(set), "remove_process_set");
  }

  void Sum(int64_t count, int set, int members, double mine, double want) {
    Tensor tensor("sum", count, set, mine);
    tensor.request.name = "sum.checked";  // process sets have numbers of their own, never the same
    horon_work* work = nullptr;
    Must(horon_run(&tensor.request, &work), "sum over " + std::to_string(members) + " ranks");
    horon_work_release(work);
    if (tensor.output.front() != want || tensor.output.back() != want) Die("a wrong sum");
  }

  // Rank 0's clock decides for all.
  void LookAtClock() {
    Tensor now("broadcast:root=0", 1, 0, Seconds());
    now.request.name = "clock";
    horon_work* work = nullptr;
    Must(horon_run(&now.request, &work), "the clock");
    horon_work_release(work);
    over_ = now.output[0] >= seconds_;
    half_ = now.output[0] >= seconds_ / 2;
    if (half_ || now.output[0] < next_report_) return;
    next_report_ = now.output[0] + 1.0;
    Report(rank_, "long", rounds_);
  }

  double seconds_, next_report_ = 0;
  bool half_ = false, over_ = false;
  int rank_ = 0, size_ = 1;
  long rounds_ = 0, lives_ = 0;
  Model model_;
  std::mt19937 chance_{1};
};

}  // namespace

int main() {
  // What is freed goes back to the system at once: what stays is held.
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  mallopt(M_TRIM_THRESHOLD, 64 << 10);
  const char* seconds = std::getenv("SOAK_SECONDS");
  return Soak(seconds != nullptr ? std::atof(seconds) : 10).Run();
}
