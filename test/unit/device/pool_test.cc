// The pool alone: what was given back is taken again.
#include "runtime/device/memory.h"
#include "test/support/catch.h"

namespace horon {
namespace {

TEST_CASE("what is given back is taken again, and nothing else is held", "[pool]") {
  const auto pool = std::make_shared<Pool>(MakeHostMemory());
  const std::byte* first = nullptr;
  int64_t held = 0;
  {
    const Buffer one = pool->Take(100'000).value();
    first = one.data();
    held = pool->held_bytes();
    CHECK(held >= 100'000);
    const Buffer other = pool->Take(100'000).value();
    CHECK(other.data() != first);
    CHECK(pool->held_bytes() == 2 * held);
  }
  for (int call = 0; call < 100; ++call) {
    const Buffer again = pool->Take(call % 2 == 0 ? 100'000 : 99'000).value();
    CHECK(again.data() != nullptr);
    CHECK(pool->held_bytes() == 2 * held);
  }
  pool->Trim();
  CHECK(pool->held_bytes() == 0);
}

}  // namespace
}  // namespace horon
