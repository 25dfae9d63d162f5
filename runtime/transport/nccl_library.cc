#include "runtime/transport/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <vector>

namespace horon {
namespace {

struct Opened {
  void* handle = nullptr;
  std::string path, why;
};

std::string PathOf(void* symbol) {
  Dl_info where{};
  return dladdr(symbol, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "";
}

std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// In this order: the process's (a framework's, so that there is one only), the user's, this
// Python's packages', the system's.
Opened Open(const std::vector<std::string>& names, const std::string& chosen,
            const std::vector<std::string>& patterns) {
  Opened opened;
  for (const std::string& name : names) {
    opened.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (opened.handle != nullptr) return opened;
  }
  std::vector<std::string> candidates;
  if (!chosen.empty()) candidates.push_back(chosen);
  for (const std::string& pattern : patterns) {
    for (std::string& path : Matching(pattern)) candidates.push_back(std::move(path));
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

std::vector<std::string> InPackages(const GpuLibraryPaths& paths, const std::string& file) {
  if (paths.python_prefix.empty()) return {};
  return {paths.python_prefix + "/lib/python3*/site-packages/nvidia/*/lib/" + file};
}

template <typename Fn>
bool Find(void* library, const char* name, Fn** function, std::string* missing) {
  *function = reinterpret_cast<Fn*>(dlsym(library, name));
  if (*function == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
  return *function != nullptr;
}

std::string FindAll(void* library, NcclLibrary& nccl) {
  std::string missing;
  Find(library, "ncclGetVersion", &nccl.GetVersion, &missing);
  Find(library, "ncclGetUniqueId", &nccl.GetUniqueId, &missing);
  Find(library, "ncclCommInitRankConfig", &nccl.CommInitRankConfig, &missing);
  Find(library, "ncclCommGetAsyncError", &nccl.CommGetAsyncError, &missing);
  Find(library, "ncclCommFinalize", &nccl.CommFinalize, &missing);
  Find(library, "ncclCommDestroy", &nccl.CommDestroy, &missing);
  Find(library, "ncclCommAbort", &nccl.CommAbort, &missing);
  Find(library, "ncclAllReduce", &nccl.AllReduce, &missing);
  Find(library, "ncclReduceScatter", &nccl.ReduceScatter, &missing);
  Find(library, "ncclAllGather", &nccl.AllGather, &missing);
  Find(library, "ncclBroadcast", &nccl.Broadcast, &missing);
  Find(library, "ncclSend", &nccl.Send, &missing);
  Find(library, "ncclRecv", &nccl.Recv, &missing);
  Find(library, "ncclGroupStart", &nccl.GroupStart, &missing);
  Find(library, "ncclGroupEnd", &nccl.GroupEnd, &missing);
  Find(library, "ncclGetErrorString", &nccl.GetErrorString, &missing);
  Find(library, "ncclGetLastError", &nccl.GetLastError, &missing);
  return missing;
}

std::string Dotted(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Status NcclLibrary::Check(NcclAnswer answer, const std::string& what) const {
  if (answer == kNcclSuccess || answer == kNcclInProgress) return Status::Ok();
  const char* last = GetLastError(nullptr);
  const std::string words = last != nullptr && *last != '\0'
                                ? "; its last words: " + std::string(last)
                                : "; NCCL_DEBUG=WARN makes it say more";
  return Status::Unavailable("NCCL could not " + what + ": " + GetErrorString(answer) + words);
}

NcclLibrary OpenNccl(const GpuLibraryPaths& paths) {
  NcclLibrary nccl;
  const Opened opened = Open({"libnccl.so.2"}, paths.nccl, InPackages(paths, "libnccl.so.2"));
  if (opened.handle == nullptr) {
    nccl.found.text = opened.why +
                      "; install it (pip install nvidia-nccl-cu13), or set "
                      "HORON_NCCL_LIB to your libnccl.so.2";
    return nccl;
  }
  const std::string missing = FindAll(opened.handle, nccl);
  int version = 0;
  if (nccl.GetVersion == nullptr || nccl.GetVersion(&version) != kNcclSuccess) {
    nccl.found.text = "what was found is not NCCL: it has no ncclGetVersion";
    return nccl;
  }
  const std::string what =
      "NCCL " + Dotted(version) + " in " + PathOf(reinterpret_cast<void*>(nccl.GetVersion));
  if (version < kLeastNccl || !missing.empty()) {
    nccl.found.text = what + " is too old: " + Dotted(kLeastNccl) + " is the least" +
                      (missing.empty() ? "" : ", and it has no " + missing);
    return nccl;
  }
  nccl.found = {version, what};
  return nccl;
}

FoundLibrary FindCublas(const GpuLibraryPaths& paths) {
  const Opened opened = Open({"libcublas.so.13", "libcublas.so.12"}, paths.cublas,
                             InPackages(paths, "libcublas.so.1[23]"));
  if (opened.handle == nullptr) return {0, opened.why};
  int (*property)(int kind, int* value) = nullptr;  // 0 major, 1 minor, 2 patch
  std::string missing;
  int major = 0, minor = 0, patch = 0;
  if (!Find(opened.handle, "cublasGetProperty", &property, &missing) || property(0, &major) != 0 ||
      property(1, &minor) != 0 || property(2, &patch) != 0)
    return {0, "what was found is not cuBLAS: it does not say its version"};
  return {major * 10000 + minor * 100 + patch,
          "cuBLAS " + std::to_string(major) + "." + std::to_string(minor) + "." +
              std::to_string(patch) + " in " + PathOf(reinterpret_cast<void*>(property))};
}

}  // namespace horon
