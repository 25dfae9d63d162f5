#include "runtime/core/registry.h"

#include <thread>
#include <vector>

#include "test/support/catch.h"

namespace horon {
namespace {

Request Named(const std::string& name, int64_t count = 4, int32_t set = 0) {
  Request r;
  r.name = name;
  r.op = "sum";
  r.shape = {count};
  r.process_set = set;
  return r;
}

TEST_CASE("equal requests share a registration, sets have names of their own") {
  OpTable ops;
  Registry registry(ops);
  const auto a = registry.Of(Named("a")).value();
  CHECK(registry.Of(Named("a")).value() == a);
  CHECK(registry.Find(0, "a") == a);
  CHECK(registry.Of(Named("a", 4, 1)).value() != a);
  CHECK(registry.Find(0, "b") == nullptr);
  CHECK(a->key == "0/a");
  CHECK(a->bytes == 16);
  Request wrong = Named("a");
  wrong.op = "nonsense";
  CHECK(registry.Of(wrong).status().code() == Code::kInvalidArgument);
}

TEST_CASE("another request takes the name over, unless the first is pending") {
  OpTable ops;
  Registry registry(ops);
  const auto old = registry.Of(Named("a", 4)).value();
  REQUIRE(old->Claim());
  CHECK_FALSE(old->Claim());
  CHECK(registry.Of(Named("a", 5)).status().code() == Code::kInvalidArgument);
  old->Release();
  const auto now = registry.Of(Named("a", 5)).value();
  CHECK(now != old);
  CHECK_FALSE(old->Claim());  // whoever still has it must ask again
  CHECK(old->replaced());
  CHECK(now->Claim());
}

TEST_CASE("names of long ago are forgotten, a pending one never") {
  OpTable ops;
  Registry registry(ops, 10);
  const auto pending = registry.Of(Named("pending")).value();
  REQUIRE(pending->Claim());
  const auto once = registry.Of(Named("once")).value();
  const auto often = registry.Of(Named("often")).value();
  for (int i = 0; i < 100; ++i) {
    REQUIRE(registry.Of(Named("fresh." + std::to_string(i))).ok());
    REQUIRE(registry.Find(0, "often") == often);
  }
  CHECK(registry.Find(0, "once") == nullptr);
  CHECK_FALSE(once->Claim());
  CHECK(registry.Find(0, "pending") == pending);
}

TEST_CASE("the names of a process set are forgotten with it, pending ones are not") {
  OpTable ops;
  Registry registry(ops, 2);  // so that some are of the older generation
  const auto pending = registry.Of(Named("pending", 4, 7)).value();
  REQUIRE(pending->Claim());
  std::vector<SharedRegistration> gone, stay;
  for (const char* name : {"a", "b", "c"}) {
    gone.push_back(registry.Of(Named(name, 4, 7)).value());
    stay.push_back(registry.Of(Named(name, 4, 8)).value());
    REQUIRE(registry.Find(7, name) == gone.back());
    registry.ForgetSet(7);
    CHECK(registry.Find(7, name) == nullptr);
    CHECK_FALSE(gone.back()->Claim());  // whoever still has it must ask again
    CHECK(registry.Find(8, name) == stay.back());
  }
  CHECK(registry.Find(7, "pending") == pending);
  pending->Release();
  registry.ForgetSet(7);
  CHECK(registry.Find(7, "pending") == nullptr);
}

TEST_CASE("of all threads that claim one name, one at a time has it") {
  OpTable ops;
  Registry registry(ops, 4);
  std::atomic<int> inside{0}, wrong{0}, claimed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        const auto what = registry.Of(Named("x", 1 + (i + t) % 2));
        const auto other = registry.Of(Named(std::to_string(t * 3000 + i)));
        if (!other.ok() || !what.ok() || !what.value()->Claim()) continue;
        if (inside.fetch_add(1) != 0) ++wrong;
        ++claimed;
        inside.fetch_sub(1);
        what.value()->Release();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(claimed > 0);
}

}  // namespace
}  // namespace horon
