// The face of the MPI plugin (libhoron_mpi.so, built from mpi.cc, the only file with <mpi.h>).
//
// c_api.cc opens the plugin at run time, only when an MPI launcher is found, so that libhoron needs
// no MPI. The plugin uses header-only parts of libhoron plus what it compiles in itself; both sides
// come from one build (kMpiPluginVersion guards against a mixture).
//
// MPI is initialised once per process and finalised at its exit, so a runtime can be shut down and
// started again. If the user (mpi4py) has initialised MPI, it is used as it is and left alone.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/transport/losses.h"
#include "runtime/transport/transport.h"

namespace horon {

inline constexpr int kMpiPluginVersion = 7;
// MPI counts in int: what is longer is given to it in pieces of so many bytes, or of so many
// elements to add.
inline constexpr int64_t kMpiPiece = int64_t{1} << 30;

// How long the ranks wait for each other while they meet: until the limit, until one is known to be
// lost, or until the program breaks it off.
struct Patience {
  std::chrono::milliseconds limit{0};
  const Losses* losses = nullptr;               // may be null; outlives the calls
  bool (*broken_off)() = [] { return false; };  // asked again and again, by who waits
};

// A duplicate of MPI_COMM_WORLD that no other life uses. Blocking calls below serve the bootstrap
// only (before there is a background thread); each gives up with kUnavailable.
class MpiWorld {
 public:
  virtual ~MpiWorld() = default;  // leaves the communicator to the next life; MPI itself stays up
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Node number of each rank, from MPI_Comm_split_type(MPI_COMM_TYPE_SHARED).
  virtual Result<std::vector<int>> NodeOf(const Patience& patience) = 0;
  // Everybody's text, by rank. Collective.
  virtual Result<std::vector<std::string>> Exchange(const std::string& mine,
                                                    const Patience& patience) = 0;
  // Whether a blocked user thread may run the cycle: at least MPI_THREAD_SERIALIZED.
  virtual bool serialized() const = 0;
  virtual bool multiple() const = 0;                // MPI_THREAD_MULTIPLE
  virtual std::string library_version() const = 0;  // first line of MPI_Get_library_version
  // Whether this MPI says that it reads and writes the memory of NVIDIA's GPUs
  // (MPIX_Query_cuda_support).
  virtual bool cuda_aware() const = 0;
  // Counts "mpi.messages", "mpi.bytes", "mpi.collectives". `reduces_blocks`: whether reductions may
  // be MPI's own; the same on all ranks, and so is `piece`, which tests make small. `reads_gpus`:
  // whether messages may lie in a GPU's memory.
  virtual std::unique_ptr<Transport> MakeTransport(Counters& counters, bool reduces_blocks,
                                                   int64_t piece = kMpiPiece,
                                                   bool reads_gpus = false) = 0;
};

// The plugin's C entry points, found by dlsym.
extern "C" {
// kMpiPluginVersion of the plugin.
using HoronMpiVersionFn = int();
// Initialises MPI if need be and opens a world; on failure null and *status is set.
using HoronMpiOpenFn = MpiWorld*(Status* status, const Patience* patience);
// MPI_Finalize, if Horon initialised MPI; gives up after limit_ms. Called from an atexit handler.
using HoronMpiFinalizeFn = void(int limit_ms);
}
inline constexpr const char* kMpiVersionSymbol = "horon_mpi_version";
inline constexpr const char* kMpiOpenSymbol = "horon_mpi_open";
inline constexpr const char* kMpiFinalizeSymbol = "horon_mpi_finalize";

}  // namespace horon
