#include "runtime/join.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/fault.h"
#include "runtime/base/log.h"
#include "runtime/base/look.h"
#include "runtime/base/own_descriptors.h"
#include "runtime/base/system_error.h"
#include "runtime/describe_signal.h"
#include "runtime/transport/rendezvous.h"
#include "runtime/transport/shm.h"

namespace horon {
namespace {

bool UnderMpi() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID"}) {
    if (EnvironmentVariable(name) != nullptr) return true;
  }
  return false;
}

// Transports between this rank and all others, in the order of preference self, node, MPI.
void Connect(RuntimeParts& parts, Transport* node, Transport* mpi) {
  for (int r = 0; r < parts.topology.size(); ++r) {
    Transport* way = r == parts.rank                       ? parts.transports[0].get()
                     : node != nullptr && node->Reaches(r) ? node
                                                           : mpi;
    parts.route.push_back(way);
  }
}

// Of the process's first init; a recorder that cannot be made is no reason to stop. Under a foreign
// launcher a file outlives its rank, where a folder is named; in memory `horonrun top` finds it.
std::shared_ptr<Recorder> RecorderOf(const Config& config, ProcessState& process, int rank) {
  if (process.recorder || config.recorder_events == 0) return process.recorder;
  const bool launched = process.launcher != nullptr;
  const bool in_file = !launched && !config.postmortem_dir.empty();
  std::error_code ignored;  // InFile says what is wrong
  if (in_file) std::filesystem::create_directories(config.postmortem_dir, ignored);
  const std::string file = config.postmortem_dir + "/rank-" + std::to_string(rank) + ".rec";
  auto made = in_file ? Recorder::InFile(file, config.recorder_events)
                      : Recorder::InMemory(config.recorder_events);
  if (!made.ok()) {
    Log(LogLevel::kWarn, "runtime", made.status().message());
    return nullptr;
  }
  process.recorder = made.value();
  process.recorder->SetRank(rank);
  if (!launched) return process.recorder;
  const Status sent =
      SendPacket(process.launcher->fd, "recorder " + std::to_string(process.recorder->bytes()),
                 process.recorder->fd());
  if (!sent.ok()) Log(LogLevel::kWarn, "runtime", sent.message());
  return process.recorder;
}

// HORON_ADASUM_KERNEL=cublas. What is the default is not among an op's parameters.
bool WantsCublas(const Config& config) {
  const auto of_adasum = config.op_defaults.find("adasum");
  return of_adasum != config.op_defaults.end() && of_adasum->second.contains("kernel");
}

MemoryRegistration RegistrationOf(const Config& config) {
  if (config.nccl_register == "symmetric") return MemoryRegistration::kTogether;
  return config.nccl_register == "yes" ? MemoryRegistration::kEach : MemoryRegistration::kNone;
}

RuntimeParts Begin(const Config& config, ProcessState& process, int rank, Topology topology,
                   std::shared_ptr<Losses> losses) {
  RuntimeParts parts;
  parts.config = config;
  parts.rank = rank;
  parts.topology = std::move(topology);
  parts.counters = std::make_shared<Counters>();
  parts.losses = std::move(losses);
  GpuChoices choices;
  choices.nccl = config.nccl;
  choices.nccl_needed = config.nccl && config.inter == "nccl";
  if (WantsCublas(config)) choices.pairs = PairKernels::kCublas;
  choices.groups = {config.nccl_time, static_cast<int>(config.nccl_max_ctas),
                    RegistrationOf(config)};
  parts.gpus =
      std::make_shared<Gpus>([&process, config] { return process.gpu.Open(config); }, choices);
  parts.recorder = RecorderOf(config, process, rank);
  parts.transports.push_back(std::make_unique<SelfTransport>(rank));
  return parts;
}

Transport* AddNode(RuntimeParts& parts, std::shared_ptr<SharedSegment> segment) {
  if (!segment) return nullptr;
  const Topology& topology = parts.topology;
  parts.segment = std::move(segment);
  parts.transports.push_back(
      std::make_unique<ShmTransport>(parts.segment, topology.members(topology.node_of(parts.rank)),
                                     topology.local_rank(parts.rank), "shm", parts.config.cma,
                                     &(*parts.counters)["shm.read_bytes"]));
  return parts.transports.back().get();
}

std::unique_ptr<Watch> MakeWatch(RuntimeParts& parts, std::shared_ptr<LauncherSocket> launcher,
                                 std::shared_ptr<SharedSegment> segment,
                                 std::vector<std::pair<Descriptor, int>> peers) {
  const Topology& topology = parts.topology;
  WatchParts watch{std::move(segment),
                   topology.members(topology.node_of(parts.rank)),
                   topology.local_rank(parts.rank),
                   std::move(launcher),
                   std::move(peers),
                   parts.losses,
                   DescribeSignalFd()};
  parts.launched = watch.launcher != nullptr;
  auto made = std::make_unique<Watch>(std::move(watch));
  parts.on_fault = [watch = made.get()](const std::string& what) { watch->SayLost(what); };
  parts.on_loss = [watch = made.get()](int rank, const std::string& why) {
    watch->Tell("lost " + std::to_string(rank) + " " + why);
  };
  parts.on_letter = [watch = made.get()] { watch->LookSoon(); };
  return made;
}

const std::shared_ptr<LauncherSocket>& Launcher(const Config& config, ProcessState& process) {
  if (!process.launcher && config.launcher_fd >= 0) {
    process.launcher = std::make_shared<LauncherSocket>();
    process.launcher->fd = Own(static_cast<int>(config.launcher_fd));
  }
  return process.launcher;
}

SegmentShape ShapeOf(const Config& config, int ranks) {
  return SegmentShape::For(ranks, config.shm_ring_bytes, config.shm_chunk_bytes);
}

// A process that nobody started together with others; else why it cannot be that.
Status CheckAlone(const Config& config) {
  const std::string started = " needs ranks that horonrun, mpirun or srun started";
  if (config.controller == "shm") return Status::InvalidArgument("HORON_CONTROLLER=shm" + started);
  if (config.size > 1)
    return Status::InvalidArgument("HORON_SIZE=" + std::to_string(config.size) + started);
  const char* const world = EnvironmentVariable("WORLD_SIZE");
  if (EnvironmentVariable("TORCHELASTIC_RUN_ID") != nullptr && world != nullptr &&
      std::atoi(world) > 1) {
    return Status::InvalidArgument(
        "torchrun started " + std::string(world) +
        " processes, which know nothing of each other to Horon: start them with horonrun -np " +
        world + " (or mpirun, srun)");
  }
  const char* const tasks = EnvironmentVariable("SLURM_STEP_NUM_TASKS");
  if (tasks == nullptr || std::atoi(tasks) <= 1) return Status::Ok();
  return Status::InvalidArgument(
      "srun started " + std::string(tasks) +
      " tasks without telling MPI: use srun --mpi=pmix (srun --mpi=list says what there is), or "
      "start them with horonrun");
}

// Without a GPU nobody asks.
bool ReadsGpus(const Config& config, const MpiWorld& mpi) {
  return config.mpi_cuda == "on" || (config.mpi_cuda == "auto" && mpi.cuda_aware());
}

// An MPI that does not understand what started the ranks makes a job of its own of each.
Status CheckTogether(const MpiWorld& mpi) {
  if (mpi.size() > 1) return Status::Ok();
  // mpirun's own first: where srun starts its daemons, they are Slurm's tasks.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* const ranks = EnvironmentVariable(name);
    if (ranks == nullptr) continue;
    if (std::atoi(ranks) <= 1) return Status::Ok();
    return Status::InvalidArgument(
        std::string(name) + "=" + ranks + ", but MPI (" + mpi.library_version() +
        ") takes this process for the only rank: it does not understand what started the ranks; "
        "use srun --mpi=pmix (srun --mpi=list says what there is), this MPI's own mpirun, or "
        "horonrun");
  }
  return Status::Ok();
}

Result<std::unique_ptr<Job>> JoinAlone(const Config& config, ProcessState& process) {
  HORON_TRY(CheckAlone(config));
  auto job = std::make_unique<Job>();
  RuntimeParts parts = Begin(config, process, 0, Topology::OneNode(1), std::make_shared<Losses>());
  job->controller = job->transport = "self";
  job->watch = MakeWatch(parts, nullptr, nullptr, {});
  HORON_TRY(job->watch->status());
  Connect(parts, nullptr, nullptr);
  parts.control = parts.route;
  job->Start(std::move(parts));
  return job;
}

Result<std::unique_ptr<Job>> JoinThroughLauncher(const Config& config, ProcessState& process) {
  if (config.size < 1 || config.rank >= config.size) {
    return Status::InvalidArgument("HORON_RANK=" + std::to_string(config.rank) +
                                   " does not fit HORON_SIZE=" + std::to_string(config.size));
  }
  if (config.local_size > 0 && config.local_size < config.size) {
    return Status::InvalidArgument(
        "HORON_LOCAL_SIZE splits the job into several nodes, which talk over MPI: start it through "
        "horonrun --mpi or mpirun");
  }
  const auto until = std::chrono::steady_clock::now() + config.start_time;
  const auto launcher = Launcher(config, process);
  auto job = std::make_unique<Job>();
  const auto size = static_cast<int>(config.size), rank = static_cast<int>(config.rank);
  RuntimeParts parts =
      Begin(config, process, rank, Topology::OneNode(size), std::make_shared<Losses>());
  job->controller = job->transport = size > 1 ? "shm" : "self";
  std::shared_ptr<SharedSegment> segment;
  if (size > 1) {
    HORON_ASSIGN(segment, MeetThroughLauncher(*launcher, rank, process.generation,
                                              ShapeOf(config, size), config.start_time));
  }
  job->watch = MakeWatch(parts, launcher, segment, {});
  HORON_TRY(job->watch->status());
  if (segment) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    HORON_TRY(WaitForAll(*segment, parts.topology.members(0), rank,
                         std::max(left, std::chrono::milliseconds{0})));
  }
  Connect(parts, AddNode(parts, std::move(segment)), nullptr);
  parts.control = parts.route;
  job->Start(std::move(parts));
  return job;
}

// What must be the same on all ranks before they can meet. A launcher of MPI's may set variables
// for some ranks only.
Status CheckAlike(const Config& config, MpiWorld& mpi, const Patience& patience) {
  const std::string controller = config.controller == "shm" ? "shm" : "mpi";
  const std::string said =
      "HORON_CONTROLLER=" + controller + ", HORON_LOCAL_SIZE=" + std::to_string(config.local_size);
  HORON_ASSIGN(const std::vector<std::string> heard, mpi.Exchange(said, patience));
  for (size_t rank = 1; rank < heard.size(); ++rank) {
    if (heard[rank] == heard[0]) continue;
    return Status::InvalidArgument("rank 0 has " + heard[0] + ", rank " + std::to_string(rank) +
                                   " has " + heard[rank] + ": these must be equal on all ranks");
  }
  return Status::Ok();
}

Result<Topology> TopologyOf(const Config& config, MpiWorld& mpi, const Patience& patience) {
  HORON_ASSIGN(std::vector<int> node_of, mpi.NodeOf(patience));
  if (config.local_size == 0) return Topology::FromNodes(std::move(node_of));
  const auto block = static_cast<int>(config.local_size);
  for (int r = 0; r < mpi.size(); ++r) {
    if (node_of[static_cast<size_t>(r)] != node_of[static_cast<size_t>(r / block * block)]) {
      return Status::InvalidArgument("HORON_LOCAL_SIZE=" + std::to_string(block) + " puts ranks " +
                                     std::to_string(r / block * block) + " and " +
                                     std::to_string(r) +
                                     " on one node, but they run on different hosts");
    }
  }
  return Topology::Blocks(mpi.size(), block);
}

Result<Meeting> MeetNode(const Config& config, MpiWorld& mpi, const Topology& topology,
                         const Patience& patience) {
  const int rank = mpi.rank(), local_size = topology.local_size(rank);
  Listener listener;
  if (topology.local_rank(rank) == 0 && local_size > 1) {
    HORON_ASSIGN(listener, Listen());
  }
  const std::string said = (config.deterministic ? "1" : "0") + listener.name;
  HORON_ASSIGN(const std::vector<std::string> heard, mpi.Exchange(said, patience));
  Meeting meeting;
  if (local_size > 1) {
    const auto first = static_cast<size_t>(topology.members(topology.node_of(rank))[0]);
    HORON_ASSIGN(meeting, MeetThroughSocket(listener, heard[first].substr(1), local_size,
                                            topology.local_rank(rank), ShapeOf(config, local_size),
                                            patience.limit));
  }
  meeting.deterministic = heard[0][0] == '1';
  return meeting;
}

Result<std::unique_ptr<Job>> JoinThroughMpi(const Config& config, ProcessState& process) {
  auto job = std::make_unique<Job>();
  const auto losses = std::make_shared<Losses>();
  const Patience patience{config.start_time, losses.get(), [] { return !GoOn().ok(); }};
  const auto launcher = Launcher(config, process);
  std::unique_ptr<Watch> early;  // hears of deaths while the ranks meet
  if (launcher)
    early = std::make_unique<Watch>(WatchParts{nullptr, {}, 0, launcher, {}, losses, -1});
  if (early) HORON_TRY(early->status());
  HORON_ASSIGN(job->mpi, process.mpi.Join(config, patience));
  HORON_TRY(CheckTogether(*job->mpi));
  HORON_TRY(CheckAlike(config, *job->mpi, patience));
  HORON_ASSIGN(Topology topology, TopologyOf(config, *job->mpi, patience));
  if (config.controller == "shm" && topology.nodes() > 1) {
    return Status::InvalidArgument("HORON_CONTROLLER=shm cannot negotiate between " +
                                   std::to_string(topology.nodes()) + " nodes; use mpi");
  }
  HORON_ASSIGN(Meeting meeting, MeetNode(config, *job->mpi, topology, patience));
  const bool deterministic = meeting.deterministic;
  RuntimeParts parts = Begin(config, process, job->mpi->rank(), std::move(topology), losses);
  early.reset();
  job->watch = MakeWatch(parts, launcher, meeting.segment, std::move(meeting.peers));
  HORON_TRY(job->watch->status());
  Transport* node = AddNode(parts, std::move(meeting.segment));
  const bool by_shm = config.controller == "shm" && node != nullptr;
  Transport* mpi = nullptr;
  if (!by_shm || parts.topology.nodes() > 1) {
    parts.transports.push_back(job->mpi->MakeTransport(*parts.counters, !deterministic, kMpiPiece,
                                                       ReadsGpus(config, *job->mpi)));
    mpi = parts.transports.back().get();
  }
  Connect(parts, node, mpi);
  // Ranks of one node talk over their segment, but where the user wants to see MPI do it all.
  const bool by_route = by_shm || parts.topology.nodes() > 1;
  for (int r = 0; r < parts.topology.size(); ++r)
    parts.control.push_back(r == parts.rank || by_route ? parts.route[static_cast<size_t>(r)]
                                                        : mpi);
  parts.may_lend = job->mpi->serialized();
  if (job->mpi->multiple()) (*parts.counters)["mpi.thread_multiple"].Add();
  job->controller = parts.topology.size() == 1 ? "self" : by_shm ? "shm" : "mpi";
  job->transport = parts.topology.size() == 1    ? "self"
                   : parts.topology.nodes() == 1 ? "shm"
                   : node != nullptr             ? "shm+mpi"
                                                 : "mpi";
  job->Start(std::move(parts));
  if (launcher) job->watch->Tell("joined");
  return job;
}

// The socket to horonrun is the rank's own: what a rank starts has its environment only.
Status CheckStarted(const Config& config, const ProcessState& process) {
  if (config.launcher_fd < 0 || process.launcher) return Status::Ok();
  struct stat facts{};
  const bool there = fstat(static_cast<int>(config.launcher_fd), &facts) == 0;
  if (there && S_ISSOCK(facts.st_mode)) return Status::Ok();
  return Status::InvalidArgument(
      "a rank of a job has started this program, which has its environment and is no rank of that "
      "job: to run it alone, unset HORON_RANK, HORON_SIZE, HORON_LOCAL_RANK and HORON_LAUNCHER_FD");
}

// Through whatever started this process.
Result<std::unique_ptr<Job>> JoinSomehow(const Config& config, ProcessState& process) {
  ++process.generation;
  HORON_TRY(CheckStarted(config, process));
  HORON_TRY(ArmFault(config.fault));
  FaultPoint(FaultPhase::kInit);
  if (config.launcher_fd >= 0 && config.rank >= 0) return JoinThroughLauncher(config, process);
  if (UnderMpi() || config.controller == "mpi") return JoinThroughMpi(config, process);
  return JoinAlone(config, process);
}

// What the standard library throws becomes an error: of a thread that cannot be started, above all.
Result<std::unique_ptr<Job>> JoinWhateverComes(const Config& config, ProcessState& process) {
  try {
    return JoinSomehow(config, process);
  } catch (const std::system_error& error) {
    return Status::Unavailable("this process cannot join: " + SystemError(error.code().value()));
  } catch (const std::exception& error) {
    return Status::Unavailable(std::string("this process cannot join: ") + error.what());
  }
}

}  // namespace

Result<std::unique_ptr<Job>> Join(const Config& config, ProcessState& process) {
  Result<std::unique_ptr<Job>> job = JoinWhateverComes(config, process);
  if (job.ok()) {
    job.value()->process = &process;
    const Status begun = job.value()->StartMetrics();
    if (!begun.ok()) EndJob(std::move(job.value()));
    HORON_TRY(begun);
  } else if (process.launcher) {
    // It may count on this rank by now, which may end in peace all the same.
    const Status sent = SendPacket(process.launcher->fd, "unjoined", -1);
    (void)sent;  // a launcher that is gone needs no news
  }
  return job;
}

}  // namespace horon
