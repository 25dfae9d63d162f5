#include "runtime/plugin_library.h"

#include <dlfcn.h>

namespace horon {

std::string PluginPath(const std::string& name) {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&PluginPath), &self);
  const std::string here = self.dli_fname != nullptr ? self.dli_fname : "";
  return here.substr(0, here.rfind('/') + 1) + name;
}

Result<PluginLibrary> PluginLibrary::Open(const std::string& name, const char* version_symbol,
                                          int version, const std::string& what,
                                          const std::string& advice) {
  const std::string path = PluginPath(name);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return Status::Unsupported(
        what + " cannot be used: " + std::string(why != nullptr ? why : path) + ". " + advice);
  }
  const PluginLibrary plugin(handle);
  auto* const said = plugin.Symbol<int()>(version_symbol);
  if (said == nullptr || said() != version) {
    return Status::Unsupported(
        path + " is of another version of Horon than libhoron.so; install Horon again");
  }
  return plugin;
}

void* PluginLibrary::Address(const char* name) const { return dlsym(handle_, name); }

}  // namespace horon
