#include "runtime/core/gpu_owners.h"

#include <vector>

#include "test/support/catch.h"

namespace horon {
namespace {

constexpr int kBefore = 22907, kSince = 23000;

GpuIdentity Gpu(int number) { return {static_cast<std::byte>(number)}; }

GpuOwner Plain(int gpu) { return OwnerOf(Gpu(gpu), kSince, nullptr, nullptr); }
GpuOwner On(const char* host) { return OwnerOf(Gpu(1), kSince, host, nullptr); }
GpuOwner Sharing(const char* value, int version = kSince) {
  return OwnerOf(Gpu(1), version, nullptr, value);
}

// The places of the two, as 10 * first + second; -1: none.
int Two(const std::vector<GpuOwner>& members) {
  const auto two = TwoOfOneGpu(members);
  return two ? static_cast<int>(10 * two->first + two->second) : -1;
}

TEST_CASE("two ranks of one GPU are the first two that have it", "[gpu]") {
  REQUIRE(Two({}) == -1);
  REQUIRE(Two({Plain(1)}) == -1);
  REQUIRE(Two({Plain(1), Plain(2), Plain(3)}) == -1);
  REQUIRE(Two({Plain(1), Plain(2), Plain(3), Plain(2), Plain(1)}) == 4);
  REQUIRE(Two({Plain(1), Plain(2), Plain(3), Plain(2)}) == 13);
}

TEST_CASE("of a GPU that is not known nobody says whose it is", "[gpu]") {
  REQUIRE(Two({Plain(0), Plain(0)}) == -1);
}

TEST_CASE("NCCL_HOSTID sets ranks of one GPU apart, one rank's alone, too", "[gpu]") {
  REQUIRE(Two({On("a"), On("b")}) == -1);
  REQUIRE(Two({On("a"), On("a")}) == 1);
  REQUIRE(Two({On("a"), Plain(1)}) == -1);
  REQUIRE(Two({On("a"), Plain(1), Plain(1)}) == 12);
  REQUIRE(Two({On(""), Plain(1)}) == 1);
}

TEST_CASE("an NCCL that is asked to takes ranks of one GPU", "[gpu]") {
  REQUIRE(Two({Sharing("1"), Sharing("1")}) == -1);
  REQUIRE(Two({Sharing("2"), Sharing("0x1")}) == -1);
  for (const char* off : {"0", "", "yes"}) REQUIRE(Two({Sharing(off), Sharing(off)}) == 1);
  REQUIRE(Two({Sharing("1"), Plain(1)}) == 1);  // all have to ask
  REQUIRE(Two({Sharing("1", kBefore), Sharing("1", kBefore)}) == 1);
}

}  // namespace
}  // namespace horon
