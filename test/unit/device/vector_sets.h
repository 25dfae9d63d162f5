// The instruction sets whose bits are compared with those of the plain loops.
#pragma once

#include <vector>

#include "runtime/device/kernels_host.h"
#include "test/support/catch.h"

namespace horon::test {

struct VectorSet {
  const char* name;
  const HostKernels* kernels;
};

// Those that this CPU has; of its architecture's others it is said that they are not compared.
inline std::vector<VectorSet> VectorSets() {
#if defined(__x86_64__)
  std::vector<VectorSet> sets = {{"AVX2", KernelsFor(Isa::kAvx2)},
                                 {"AVX-512", KernelsFor(Isa::kAvx512)}};
#elif defined(__aarch64__)
  std::vector<VectorSet> sets = {{"NEON", KernelsFor(Isa::kNeon)}};
#else
  std::vector<VectorSet> sets;
#endif
  std::erase_if(sets, [](const VectorSet& set) {
    if (set.kernels == nullptr) WARN("this CPU has no " << set.name << "; not compared");
    return set.kernels == nullptr;
  });
  return sets;
}

}  // namespace horon::test
