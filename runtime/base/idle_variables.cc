#include <algorithm>
#include <array>
#include <span>

#include "runtime/base/config.h"
#include "runtime/base/nearest.h"

namespace horon {
namespace {

struct Idle {
  std::string_view name;  // without its prefix; with * at its end: whatever begins so
  const char* why;
};

constexpr const char* kByPlace = "the way of a collective follows from where its ranks are";
constexpr const char* kPlaced = "the launcher, or MPI, says where this rank is";
constexpr const char* kInPairs = "settings are compared in pairs, there is no Gaussian process";

// What Horovod reads and Horon has no use for.
constexpr std::array kIdle = {
    Idle{"AUTOTUNE_BAYES_OPT_MAX_SAMPLES", kInPairs},
    Idle{"AUTOTUNE_GAUSSIAN_PROCESS_NOISE", kInPairs},
    Idle{"BATCH_D2D_MEMCOPIES", "a bucket on a GPU is always packed by one kernel"},
    Idle{"CCL_CACHE", "oneCCL is not used"},
    Idle{"CPU_OPERATIONS", "on one host it is shared memory, between hosts MPI"},
    Idle{"CROSS_RANK", kPlaced},
    Idle{"CROSS_SIZE", kPlaced},
    Idle{"DISABLE_GROUP_FUSION", "a group is fused like other tensors"},
    Idle{"DISABLE_NVTX_RANGES", "there are none"},
    Idle{"DYNAMIC_PROCESS_SETS", "process sets can always be added"},
    Idle{"ELASTIC", "this version runs no elastic jobs"},
    Idle{"ELASTIC_TIMEOUT", "this version runs no elastic jobs"},
    Idle{"ENABLE_ASYNC_COMPLETION", "the host never waits for a GPU before it is asked to"},
    Idle{"ENABLE_XLA_OPS", "there are no XLA ops"},
    Idle{"GLOO_*", "there is no gloo; horonrun --network-interfaces chooses networks"},
    Idle{"HIERARCHICAL_ALLGATHER", kByPlace},
    Idle{"HOSTNAME", kPlaced},
    Idle{"LOCAL_RANK", kPlaced},
    Idle{"LOCAL_SIZE", kPlaced},
    Idle{"MPI_THREADS_DISABLE", "HORON_LEND=0 leaves MPI to one thread"},
    Idle{"NUM_NCCL_STREAMS", "each GPU has one stream for communication"},
    Idle{"RANK", kPlaced},
    Idle{"SIZE", kPlaced},
    Idle{"THREAD_AFFINITY", "a collective runs on the thread that waits for it"},
    Idle{"TORUS_ALLREDUCE", kByPlace},
};

bool Matches(const Idle& idle, std::string_view name) {
  if (!idle.name.ends_with('*')) return name == idle.name;
  return name.starts_with(idle.name.substr(0, idle.name.size() - 1));
}

// Why `prefix` + `name` is set for nothing; empty when it is not, or none of our business.
std::string WhyIdle(const std::string& prefix, std::string_view name) {
  const bool horovod = prefix == "HOROVOD_";
  std::vector<std::string_view> known;
  for (const Knob& knob : Knobs()) {
    if (horovod && !knob.horovod) continue;
    if (name == knob.name) return "";
    known.push_back(knob.name);
  }
  for (const Idle& idle : kIdle) {
    // Who names ranks HORON_RANK and the like may mean them for a script of its own.
    if (Matches(idle, name)) return horovod || idle.why != kPlaced ? idle.why : "";
  }
  const std::string meant = Nearest(name, known);
  return meant.empty() ? "" : "it is unknown; did you mean " + prefix + meant + "?";
}

}  // namespace

std::vector<std::string> IdleVariables(const char* const* environment) {
  std::vector<std::string> found;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view full = entry.substr(0, entry.find('='));
    for (const std::string prefix : {"HORON_", "HOROVOD_"}) {
      if (!full.starts_with(prefix)) continue;
      const std::string why = WhyIdle(prefix, full.substr(prefix.size()));
      if (!why.empty()) found.push_back(std::string(full) + " has no effect: " + why);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace horon
