#include "runtime/transport/mpi.h"

#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "runtime/transport/mpi_calls.h"
#include "runtime/transport/mpi_comm.h"
#include "runtime/transport/mpi_transport.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The process that Horon initialised MPI in; 0 if somebody else did. MPI itself is one per process,
// so this cannot belong to a runtime. After fork() the child, another process, finalises nothing.
std::atomic<pid_t> initialised_by{0};

// What an exchange lends to MPI. It outlives an exchange that is given up: MPI may still write
// here.
struct Exchanged {
  std::string mine;
  std::vector<int> lengths, places;
  std::vector<char> all;
  MPI_Request request = MPI_REQUEST_NULL;
  int length = 0;
};

class World final : public MpiWorld {
 public:
  World(std::shared_ptr<MpiComm> comm, int thread_level)
      : comm_(std::move(comm)), thread_level_(thread_level) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  Result<std::vector<int>> NodeOf(const Patience& patience) override;
  Result<std::vector<std::string>> Exchange(const std::string& mine,
                                            const Patience& patience) override {
    return ExchangeUntil(Clock::now() + patience.limit, mine, patience);
  }
  bool serialized() const override { return thread_level_ >= MPI_THREAD_SERIALIZED; }
  bool multiple() const override { return thread_level_ >= MPI_THREAD_MULTIPLE; }
  std::string library_version() const override;
  bool cuda_aware() const override;
  std::unique_ptr<Transport> MakeTransport(Counters& counters, bool reduces_blocks, int64_t piece,
                                           bool reads_gpus) override {
    return std::make_unique<MpiTransport>(comm_, counters, reduces_blocks, piece, reads_gpus);
  }

 private:
  Result<std::vector<std::string>> ExchangeUntil(Clock::time_point deadline,
                                                 const std::string& mine, const Patience& patience);
  Status Gather(Exchanged& exchanged, Clock::time_point deadline, const Patience& patience);

  std::shared_ptr<MpiComm> comm_;
  int thread_level_;
};

// A node is named by its lowest rank. The split blocks and has no other form, so it runs on a
// thread of its own where MPI allows that; with less than MPI_THREAD_SERIALIZED it runs here,
// without a limit.
Result<std::vector<int>> World::NodeOf(const Patience& patience) {
  const auto start = Clock::now();
  auto lowest = std::make_shared<std::pair<int, int>>(MPI_SUCCESS, rank());  // code, rank
  const auto split = [lowest, comm = comm_, rank = rank()] {
    MPI_Comm node = MPI_COMM_NULL;
    lowest->first =
        MPI_Comm_split_type(comm->get(), MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    if (lowest->first != MPI_SUCCESS) return;
    MPI_Allreduce(MPI_IN_PLACE, &lowest->second, 1, MPI_INT, MPI_MIN, node);
    MPI_Comm_free(&node);
  };
  if (!serialized()) {
    split();
  } else if (!Within(patience, split)) {
    comm_->Spoil();
    return Late("finding the nodes", patience);
  }
  HORON_TRY(Check(lowest->first, "asking MPI for the nodes"));
  HORON_ASSIGN(const std::vector<std::string> names,
               ExchangeUntil(start + patience.limit, std::to_string(lowest->second), patience));
  std::vector<int> numbers(names.size(), 0);  // numbers[r]: of the node whose lowest rank is r
  std::vector<int> node_of;
  int nodes = 0;
  for (size_t r = 0; r < names.size(); ++r) {
    const auto first = static_cast<size_t>(std::stoi(names[r]));
    if (first == r) numbers[r] = nodes++;
    node_of.push_back(numbers.at(first));
  }
  return node_of;
}

Status World::Gather(Exchanged& e, Clock::time_point deadline, const Patience& patience) {
  const char* what = "an exchange";
  const auto ranks = static_cast<size_t>(size());
  e.length = static_cast<int>(e.mine.size());
  e.lengths.resize(ranks);
  int code =
      MPI_Iallgather(&e.length, 1, MPI_INT, e.lengths.data(), 1, MPI_INT, comm_->get(), &e.request);
  HORON_TRY(Check(code, what));
  HORON_TRY(Await(e.request, deadline, what, patience));
  int64_t total = 0;
  for (const int length : e.lengths) {
    e.places.push_back(static_cast<int>(total));
    total += length;
    if (total > INT32_MAX) return Status::Internal("an exchange of more than 2 GiB");
  }
  e.all.resize(static_cast<size_t>(total));
  code = MPI_Iallgatherv(e.mine.data(), e.length, MPI_CHAR, e.all.data(), e.lengths.data(),
                         e.places.data(), MPI_CHAR, comm_->get(), &e.request);
  HORON_TRY(Check(code, what));
  return Await(e.request, deadline, what, patience);
}

Result<std::vector<std::string>> World::ExchangeUntil(Clock::time_point deadline,
                                                      const std::string& mine,
                                                      const Patience& patience) {
  if (mine.size() > static_cast<size_t>(INT32_MAX))
    return Status::Internal("an exchange of more than 2 GiB");
  auto exchanged = std::make_unique<Exchanged>();
  exchanged->mine = mine;
  const Status status = Gather(*exchanged, deadline, patience);
  if (!status.ok()) {
    comm_->Spoil();
    if (exchanged->request != MPI_REQUEST_NULL) exchanged.release();
    return status;
  }
  std::vector<std::string> all;
  for (size_t r = 0; r < exchanged->lengths.size(); ++r) {
    all.emplace_back(exchanged->all.data() + exchanged->places[r],
                     static_cast<size_t>(exchanged->lengths[r]));
  }
  return all;
}

std::string World::library_version() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "";
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of("\n,"));
}

// Not of every MPI, so it is looked for in the library that MPI_Init comes from.
bool World::cuda_aware() const {
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init), &where) == 0) return false;
  void* const library = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  auto* const query = reinterpret_cast<int (*)()>(dlsym(library, "MPIX_Query_cuda_support"));
  const bool aware = query != nullptr && query() == 1;
  dlclose(library);
  return aware;
}

// Open MPI writes to its sockets without MSG_NOSIGNAL: where SIGPIPE still kills, the death of one
// rank would kill those that just send to it. A handler that does nothing, unlike SIG_IGN, does not
// pass to programs that this one starts.
void SurviveBrokenPipes() {
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction none{};
  none.sa_handler = [](int) {};
  none.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &none, nullptr);
}

// Uses MPI as it is, or initialises it. Gives the level of threading.
Result<int> Initialise(const Patience& patience) {
  int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0)
    return Status::Unavailable("MPI was finalised in this process already and cannot start again");
  if (initialised != 0) {
    MPI_Query_thread(&level);
    return level;
  }
  // It waits for all ranks, and one may never come. A second call beside it would end the process.
  static std::atomic<bool> under_way{false};
  if (under_way.load()) {
    return Status::Unavailable(
        "an earlier init was given up in MPI_Init, which cannot be begun again in this process");
  }
  auto made = std::make_shared<std::pair<int, int>>(MPI_SUCCESS, level);
  const bool returned = Within(patience, [made] {
    under_way.store(true);
    made->first = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &made->second);
    under_way.store(false);
  });
  if (!returned) return Late("MPI_Init", patience);
  HORON_TRY(Check(made->first, "MPI_Init_thread"));
  initialised_by = getpid();
  // Errors that belong to no communicator go to these.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return made->second;
}

Result<MpiWorld*> Open(const Patience& patience) {
  SurviveBrokenPipes();
  HORON_ASSIGN(const int level, Initialise(patience));
  // Like MPI one of the process; never destroyed, since a meeting that was given up may go on.
  static MpiComms& comms = *new MpiComms;
  HORON_ASSIGN(std::shared_ptr<MpiComm> comm, comms.Take(patience));
  return new World(std::move(comm), level);
}

}  // namespace
}  // namespace horon

#define HORON_PLUGIN extern "C" __attribute__((visibility("default")))

HORON_PLUGIN int horon_mpi_version() { return horon::kMpiPluginVersion; }

HORON_PLUGIN horon::MpiWorld* horon_mpi_open(horon::Status* status,
                                             const horon::Patience* patience) {
  const horon::Result<horon::MpiWorld*> world = horon::Open(*patience);
  *status = world.status();
  return world.ok() ? world.value() : nullptr;
}

HORON_PLUGIN void horon_mpi_finalize(int limit_ms) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (horon::initialised_by != getpid() || finalised != 0) return;
  // MPI_Finalize waits for the other ranks, which may be gone.
  const horon::Patience patience{std::chrono::milliseconds{limit_ms}, nullptr};
  if (!horon::Within(patience, [] { MPI_Finalize(); })) {
    std::fprintf(stderr,
                 "horon: mpi: MPI_Finalize did not return within %d ms; leaving without it\n",
                 limit_ms);
  }
}
