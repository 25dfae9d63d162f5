// MpiPlugin: libhoron_mpi.so, opened only where MPI is wanted, so that a process that does without
// MPI needs none.
#pragma once

#include <memory>
#include <optional>

#include "runtime/base/config.h"
#include "runtime/plugin_library.h"
#include "runtime/transport/mpi.h"

namespace horon {

// One per process. Not thread safe.
class MpiPlugin {
 public:
  // Opens the plugin and libmpi, not MPI itself; the reason if one cannot be found.
  Status Open(const Config& config);
  // Initialises MPI, once per process, and joins its world. Blocks, as long as `patience` has.
  Result<std::unique_ptr<MpiWorld>> Join(const Config& config, const Patience& patience);
  // MPI_Finalize, if MPI is up; blocks at most `limit_ms`. At the end of the process.
  void Finalize(int limit_ms);
  // After a loss MPI_Finalize would wait for ever: it is left out.
  void DoNotFinalize() { finalize_ = nullptr; }

 private:
  std::optional<PluginLibrary> plugin_;
  HoronMpiFinalizeFn* finalize_ = nullptr;
};

}  // namespace horon
