// A copy that is made as far as it is asked for.
#include "runtime/peer/values_copy.h"

#include <algorithm>
#include <array>

#include "test/support/catch.h"

namespace horon {
namespace {

constexpr int64_t kBytes = 8;

bool All(const std::byte* from, const std::byte* to, std::byte value) {
  return std::all_of(from, to, [=](std::byte one) { return one == value; });
}

TEST_CASE("a copy keeps what it was asked for, and takes the rest when it is") {
  const auto pool = std::make_shared<Pool>(MakeHostMemory());
  std::array<std::byte, kBytes> source;
  source.fill(std::byte{1});
  ValuesCopy copy(pool->Take(kBytes).value(), source.data());
  REQUIRE(copy.bytes() == kBytes);
  const std::byte* data = copy.DataTo(3);
  source.fill(std::byte{2});
  CHECK(copy.DataTo(2) == data);
  CHECK(All(data, data + 3, std::byte{1}));
  CHECK(copy.data() == data);
  source.fill(std::byte{3});
  copy.data();
  CHECK(All(data, data + 3, std::byte{1}));
  CHECK(All(data + 3, data + kBytes, std::byte{2}));
}

}  // namespace
}  // namespace horon
