#include "runtime/device/gpu_libraries.h"

#include <dlfcn.h>
#include <glob.h>

#include <utility>

#include "runtime/base/prefixes.h"

namespace horon {
namespace {

std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

}  // namespace

void* OpenedLibrary::Address(const char* name) const {
  return handle != nullptr ? dlsym(handle, name) : nullptr;
}

OpenedLibrary OpenGpuLibrary(const std::vector<std::string>& names, const std::string& chosen,
                             const std::string& python_prefix, const std::string& in_packages) {
  OpenedLibrary opened;
  for (const std::string& name : names) {
    opened.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (opened.handle != nullptr) return opened;
  }
  std::vector<std::string> candidates;
  if (!chosen.empty()) candidates.push_back(chosen);
  for (const std::string& prefix : PrefixesOf(python_prefix)) {
    for (const char* const packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages",
                                       "/local/lib/python3*/dist-packages"}) {
      for (std::string& path : Matching(prefix + packages + "/nvidia/*/lib/" + in_packages))
        candidates.push_back(std::move(path));
    }
  }
  candidates.insert(candidates.end(), names.begin(), names.end());
  for (const std::string& candidate : candidates) {
    opened.handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened.handle != nullptr) return opened;
    const char* why = dlerror();
    if (opened.why.empty() || candidate == chosen) opened.why = why != nullptr ? why : candidate;
    if (candidate == chosen) return opened;  // the user's word counts
  }
  return opened;
}

std::string FileOf(void* symbol) {
  Dl_info where{};
  return dladdr(symbol, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "";
}

}  // namespace horon
