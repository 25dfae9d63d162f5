// What the two plugins have in common: they lie beside libhoron, are opened with dlopen, and must
// come from the same build.
#pragma once

#include <string>

#include "runtime/base/status.h"

namespace horon {

// The folder of libhoron (of the program, in tests) and `name`.
std::string PluginPath(const std::string& name);

// A plugin that is open for good.
class PluginLibrary {
 public:
  // kUnsupported: it does not open (`what` cannot be used, then `advice`), or is of another build.
  static Result<PluginLibrary> Open(const std::string& name, const char* version_symbol,
                                    int version, const std::string& what,
                                    const std::string& advice);
  template <typename Fn>
  Fn* Symbol(const char* name) const {
    return reinterpret_cast<Fn*>(Address(name));
  }

 private:
  explicit PluginLibrary(void* handle) : handle_(handle) {}
  void* Address(const char* name) const;
  void* handle_;
};

}  // namespace horon
