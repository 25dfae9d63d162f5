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

TEST_CASE("large buffers whose sizes change take little more than the largest", "[pool]") {
  const auto pool = std::make_shared<Pool>(MakeHostMemory());
  constexpr int64_t kMiB = 1 << 20;
  CHECK(pool->Take(33 * kMiB).value().bytes() == 33 * kMiB);
  CHECK(pool->held_bytes() == 36 * kMiB);
  pool->Trim();
  for (int64_t size = 63; size > 32; --size) CHECK(pool->Take(size * kMiB).ok());
  CHECK(pool->held_bytes() == 64 * kMiB);
  pool->Trim();
  for (int64_t size = 33; size <= 64; ++size) CHECK(pool->Take(size * kMiB).ok());
  CHECK(pool->held_bytes() == (36 + 40 + 44 + 48 + 52 + 56 + 60 + 64) * kMiB);
}

TEST_CASE("counters say what is held and what of it is taken", "[pool]") {
  const auto counters = std::make_shared<Counters>();
  const Counter &held = (*counters)["pool.bytes"], &taken = (*counters)["pool.taken_bytes"];
  auto pool = std::make_shared<Pool>(MakeHostMemory(), counters);
  Buffer one = pool->Take(4096).value(), other = pool->Take(1000).value();
  CHECK(pool->Take(0).ok());
  CHECK((held.value() == 4096 + 1024 && taken.value() == 4096 + 1024));
  one = Buffer();
  CHECK((held.value() == 4096 + 1024 && taken.value() == 1024));
  one = std::move(other);
  CHECK(taken.value() == 1024);
  other = pool->Take(4000).value();
  CHECK((held.value() == 4096 + 1024 && taken.value() == 4096 + 1024));
  pool.reset();  // the buffers keep it
  one = Buffer();
  other = Buffer();
  CHECK((held.value() == 0 && taken.value() == 0));
}

}  // namespace
}  // namespace horon
