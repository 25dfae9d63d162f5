#include "runtime/base/recycler.h"

#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

TEST_CASE("recycler: what is returned is taken again, by its size") {
  Recycler recycler;
  const Recycler::InUse recycles(recycler);
  void* const small = Recycler::Take(65);
  void* const large = Recycler::Take(1000);
  CHECK(small != large);
  Recycler::Return(small, 65);
  Recycler::Return(large, 1000);
  CHECK(Recycler::Take(600) == large);
  CHECK(Recycler::Take(128) == small);
  void* const other = Recycler::Take(128);
  CHECK(other != small);
  Recycler::Return(other, 128);
  Recycler::Return(small, 128);
  Recycler::Return(large, 600);
}

TEST_CASE("recycler: on threads where none is in use all goes to the heap") {
  Recycler recycler;
  void* taken = nullptr;
  {
    const Recycler::InUse recycles(recycler);
    taken = Recycler::Take(100);
    Recycler::Return(Recycler::Take(3000), 3000);
    std::thread([&] { Recycler::Return(Recycler::Take(3000), 3000); }).join();
  }
  Recycler::Return(taken, 100);  // of which it kept nothing
  const Recycler::InUse again(recycler);
  RecycledVector<int> numbers(700);
  CHECK(numbers.size() == 700);
}

TEST_CASE("recycler: it holds no more than its share, and nothing large") {
  Recycler recycler;
  const Recycler::InUse recycles(recycler);
  constexpr size_t kMore = Recycler::kMostFree / Recycler::kLargest + 8;
  std::vector<void*> taken;
  for (size_t i = 0; i < kMore; ++i) taken.push_back(Recycler::Take(Recycler::kLargest));
  for (void* one : taken) Recycler::Return(one, Recycler::kLargest);
  CHECK(recycler.free_bytes() == Recycler::kMostFree);
  Recycler::Return(Recycler::Take(Recycler::kLargest + 1), Recycler::kLargest + 1);
  CHECK(recycler.free_bytes() == Recycler::kMostFree);
}

}  // namespace
}  // namespace horon
