#include "runtime/transport/nccl_library.h"

namespace horon {
namespace {

std::string FindAll(const OpenedLibrary& library, NcclLibrary& nccl) {
  std::string missing;
  library.Find("ncclGetVersion", &nccl.GetVersion, &missing);
  library.Find("ncclGetUniqueId", &nccl.GetUniqueId, &missing);
  library.Find("ncclCommInitRankConfig", &nccl.CommInitRankConfig, &missing);
  library.Find("ncclCommGetAsyncError", &nccl.CommGetAsyncError, &missing);
  library.Find("ncclCommFinalize", &nccl.CommFinalize, &missing);
  library.Find("ncclCommDestroy", &nccl.CommDestroy, &missing);
  library.Find("ncclCommAbort", &nccl.CommAbort, &missing);
  library.Find("ncclAllReduce", &nccl.AllReduce, &missing);
  library.Find("ncclReduceScatter", &nccl.ReduceScatter, &missing);
  library.Find("ncclAllGather", &nccl.AllGather, &missing);
  library.Find("ncclBroadcast", &nccl.Broadcast, &missing);
  library.Find("ncclSend", &nccl.Send, &missing);
  library.Find("ncclRecv", &nccl.Recv, &missing);
  library.Find("ncclGroupStart", &nccl.GroupStart, &missing);
  library.Find("ncclGroupEnd", &nccl.GroupEnd, &missing);
  library.Find("ncclGetErrorString", &nccl.GetErrorString, &missing);
  library.Find("ncclGetLastError", &nccl.GetLastError, &missing);
  return missing;
}

// What newer ones have.
void FindMore(const OpenedLibrary& library, NcclLibrary& nccl) {
  std::string missing;
  library.Find("ncclMemAlloc", &nccl.MemAlloc, &missing);
  library.Find("ncclMemFree", &nccl.MemFree, &missing);
  library.Find("ncclCommRegister", &nccl.CommRegister, &missing);
  library.Find("ncclCommDeregister", &nccl.CommDeregister, &missing);
  if (!missing.empty()) nccl.CommRegister = nullptr;
  library.Find("ncclCommWindowRegister", &nccl.CommWindowRegister, &missing);
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
  const OpenedLibrary opened =
      OpenGpuLibrary({"libnccl.so.2"}, paths.nccl, paths.python_prefix, "libnccl.so.2");
  if (opened.handle == nullptr) {
    nccl.found.text = opened.why +
                      "; install it (pip install nvidia-nccl-cu13, or nvidia-nccl-cu12 where the "
                      "driver is one of CUDA 12), or set HORON_NCCL_LIB to your libnccl.so.2";
    return nccl;
  }
  const std::string missing = FindAll(opened, nccl);
  int version = 0;
  if (nccl.GetVersion == nullptr || nccl.GetVersion(&version) != kNcclSuccess) {
    nccl.found.text = "what was found is not NCCL: it has no ncclGetVersion";
    return nccl;
  }
  const std::string what =
      "NCCL " + Dotted(version) + " in " + FileOf(reinterpret_cast<void*>(nccl.GetVersion));
  if (version < kLeastNccl) {
    nccl.found.text = what + " is too old: " + Dotted(kLeastNccl) + " is the least" +
                      (missing.empty() ? "" : ", and it has no " + missing);
    return nccl;
  }
  if (!missing.empty()) {
    nccl.found.text = what + " is not whole: it has no " + missing;
    return nccl;
  }
  FindMore(opened, nccl);
  nccl.found = {version, what};
  return nccl;
}

}  // namespace horon
