#include "runtime/base/shared_memory.h"

#include <unistd.h>

#include "test/support/catch.h"

namespace horon {
namespace {

std::shared_ptr<SharedMemory> Make(int64_t bytes) {
  return SharedMemory::Make(bytes, "test").value();
}

TEST_CASE("other ranks of a process share what it owns, which lives as long as one uses it") {
  auto owned = Make(100);
  const SharedMemory::Address address = owned->address();
  auto mapped = SharedMemory::Map(address, 100);
  REQUIRE(mapped == owned);
  CHECK(SharedMemory::Map(address, 99) == nullptr);
  owned.reset();
  mapped->data()[99] = std::byte{7};
  CHECK(SharedMemory::Map(address, 100) == mapped);
  mapped.reset();
  CHECK(SharedMemory::Map(address, 100) == nullptr);
}

TEST_CASE("a process of another namespace may have this pid: only the token counts") {
  const auto owned = Make(100);
  SharedMemory::Address foreign = owned->address();
  REQUIRE(foreign.pid == getpid());
  foreign.token ^= 1;
  CHECK(SharedMemory::Map(foreign, 100) == nullptr);
  foreign.fd = -1;
  CHECK(SharedMemory::Map(foreign, 100) == nullptr);
}

}  // namespace
}  // namespace horon
