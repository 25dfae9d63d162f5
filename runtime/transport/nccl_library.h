// NCCL as the runtime calls it: the few functions it needs, declared here and found at run time, so
// that no build needs NCCL and one build works with every version from kLeastNccl on.
//
// Names, numbers and layouts are NCCL's. Opened once per process, by the CUDA plugin; tests have a
// table of their own (test/support/fake_nccl.h).
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "runtime/base/status.h"
#include "runtime/device/gpu_libraries.h"

namespace horon {

inline constexpr int kLeastNccl = 21800;  // 2.18

struct NcclComm;  // opaque
struct NcclUniqueId {
  char bytes[128];
};

enum NcclAnswer : int {
  kNcclSuccess = 0,
  kNcclSystemError = 2,
  kNcclInvalidArgument = 4,
  kNcclRemoteError = 6,
  kNcclInProgress = 7
};

enum NcclType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclInt64 = 4,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9
};
enum NcclOp : int { kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3 };
inline constexpr int kNcclWindowSymmetric = 1;

// The beginning of ncclConfig_t, which has been the same since 2.17. NCCL reads `size` bytes and
// takes its defaults for what came later than `version`.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
};

// Streams are cudaStream_t.
struct NcclLibrary {
  FoundLibrary found;
  NcclAnswer (*GetVersion)(int* version) = nullptr;
  NcclAnswer (*GetUniqueId)(NcclUniqueId* id) = nullptr;
  NcclAnswer (*CommInitRankConfig)(NcclComm** comm, int size, NcclUniqueId id, int rank,
                                   NcclConfig* config) = nullptr;
  NcclAnswer (*CommGetAsyncError)(NcclComm* comm, NcclAnswer* answer) = nullptr;
  NcclAnswer (*CommFinalize)(NcclComm* comm) = nullptr;
  NcclAnswer (*CommDestroy)(NcclComm* comm) = nullptr;
  NcclAnswer (*CommAbort)(NcclComm* comm) = nullptr;
  NcclAnswer (*AllReduce)(const void* in, void* out, size_t count, int type, int op, NcclComm* comm,
                          void* stream) = nullptr;
  NcclAnswer (*ReduceScatter)(const void* in, void* out, size_t count, int type, int op,
                              NcclComm* comm, void* stream) = nullptr;
  NcclAnswer (*AllGather)(const void* in, void* out, size_t count, int type, NcclComm* comm,
                          void* stream) = nullptr;
  NcclAnswer (*Broadcast)(const void* in, void* out, size_t count, int type, int root,
                          NcclComm* comm, void* stream) = nullptr;
  NcclAnswer (*Send)(const void* in, size_t count, int type, int peer, NcclComm* comm,
                     void* stream) = nullptr;
  NcclAnswer (*Recv)(void* out, size_t count, int type, int peer, NcclComm* comm,
                     void* stream) = nullptr;
  NcclAnswer (*GroupStart)() = nullptr;
  NcclAnswer (*GroupEnd)() = nullptr;
  const char* (*GetErrorString)(NcclAnswer answer) = nullptr;
  const char* (*GetLastError)(NcclComm* comm) = nullptr;
  // Of 2.19 and newer; all of them or none.
  NcclAnswer (*MemAlloc)(void** memory, size_t bytes) = nullptr;
  NcclAnswer (*MemFree)(void* memory) = nullptr;
  NcclAnswer (*CommRegister)(NcclComm* comm, void* memory, size_t bytes, void** handle) = nullptr;
  NcclAnswer (*CommDeregister)(NcclComm* comm, void* handle) = nullptr;
  // Of 2.27 and newer. Windows end with their communicator.
  NcclAnswer (*CommWindowRegister)(NcclComm* comm, void* memory, size_t bytes, void** window,
                                   int flags) = nullptr;

  bool ok() const { return found.version != 0; }
  bool registers() const { return CommRegister != nullptr; }
  bool makes_windows() const { return registers() && CommWindowRegister != nullptr; }
  // Ok, or kUnavailable: "NCCL could not begin a communicator: unhandled system error; its last
  // words: ...". What is in progress is ok.
  Status Check(NcclAnswer answer, const std::string& what) const;
};

// Never fails: what is missing is in `found`.
NcclLibrary OpenNccl(const GpuLibraryPaths& paths);

}  // namespace horon
