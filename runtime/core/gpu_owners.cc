#include "runtime/core/gpu_owners.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

namespace horon {
namespace {

constexpr int kSharesGpusSince = 23000;  // NCCL 2.30

}  // namespace

GpuOwner OwnerOf(const GpuIdentity& gpu, int version, const char* host, const char* share) {
  GpuOwner owner{gpu, 0, 0};
  if (host != nullptr && *host != '\0')
    owner.host = std::max<uint64_t>(1, std::hash<std::string>{}(host));
  // NCCL reads numbers like this: in any base, and 0 where there is none.
  const bool asked = share != nullptr && std::strtoll(share, nullptr, 0) != 0;
  owner.shares = asked && version >= kSharesGpusSince ? 1 : 0;
  return owner;
}

std::optional<std::pair<size_t, size_t>> TwoOfOneGpu(std::span<const GpuOwner> members) {
  const bool shared = std::all_of(members.begin(), members.end(),
                                  [](const GpuOwner& member) { return member.shares != 0; });
  if (shared) return std::nullopt;
  for (size_t one = 0; one < members.size(); ++one) {
    if (members[one].gpu == GpuIdentity{}) continue;
    for (size_t other = one + 1; other < members.size(); ++other) {
      if (members[one].gpu == members[other].gpu && members[one].host == members[other].host)
        return std::pair{one, other};
    }
  }
  return std::nullopt;
}

}  // namespace horon
