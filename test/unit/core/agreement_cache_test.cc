// What the coordinator remembers, by hand: ids, what replaces and evicts them, what is forgotten.
#include "runtime/core/agreement_cache.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using Ids = RecycledVector<uint64_t>;

std::vector<SharedRequest> OfTwoRanks(int32_t process_set = 0) {
  Request request;
  request.name = "x";
  request.process_set = process_set;
  return std::vector<SharedRequest>(2, std::make_shared<const Request>(request));
}

TEST_CASE("a line is found under its id, with what was agreed") {
  AgreementCache cache(2);
  const uint64_t id = cache.Remember("0/a", OfTwoRanks(), {{7}}, 1);
  REQUIRE(cache.FindAlive(id) != nullptr);
  CHECK(cache.FindAlive(id)->key == "0/a");
  CHECK(cache.FindAlive(id)->agreed == Agreement{{7}});
  CHECK(cache.Find(id + 1) == nullptr);
  CHECK(cache.Find(0) == nullptr);
}

TEST_CASE("capacity 0 remembers nothing") {
  AgreementCache cache(0);
  CHECK(cache.Remember("0/a", OfTwoRanks(), {}, 1) == 0);
  CHECK(cache.EvictOldest(1).empty());
}

TEST_CASE("what was not used for longest goes first, and only beyond the capacity") {
  AgreementCache cache(2);
  const uint64_t a = cache.Remember("0/a", OfTwoRanks(), {}, 1);
  const uint64_t b = cache.Remember("0/b", OfTwoRanks(), {}, 2);
  CHECK(cache.EvictOldest(2).empty());
  cache.Use(a);
  const uint64_t c = cache.Remember("0/c", OfTwoRanks(), {}, 4);
  const uint64_t d = cache.Remember("0/d", OfTwoRanks(), {}, 4);
  CHECK(cache.EvictOldest(4) == Ids{b, a});
  CHECK(cache.FindAlive(a) == nullptr);
  cache.Remember("0/e", OfTwoRanks(), {}, 5);
  CHECK(cache.EvictOldest(5) == Ids{c});  // of those used at once the first goes
  CHECK(cache.FindAlive(d) != nullptr);
}

TEST_CASE("a name agreed anew replaces its line and takes no second place") {
  AgreementCache cache(1);
  const uint64_t old = cache.Remember("0/a", OfTwoRanks(), {{1}}, 1);
  const uint64_t now = cache.Remember("0/a", OfTwoRanks(), {{2}}, 2);
  CHECK(old != now);
  CHECK(cache.FindAlive(old) == nullptr);
  CHECK(cache.EvictOldest(2).empty());
  CHECK(cache.FindAlive(now)->agreed == Agreement{{2}});
}

TEST_CASE("the lines of a removed process set are evicted, the others stay") {
  AgreementCache cache(10);
  const uint64_t all = cache.Remember("0/x", OfTwoRanks(0), {}, 1);
  const uint64_t set = cache.Remember("3/x", OfTwoRanks(3), {}, 1);
  cache.EvictSet(3, 2);
  CHECK(cache.FindAlive(set) == nullptr);
  CHECK(cache.FindAlive(all) != nullptr);
  CHECK(cache.Remember("3/x", OfTwoRanks(3), {}, 3) != set);
}

TEST_CASE("an evicted line is understood until every rank has heard of the eviction") {
  AgreementCache cache(1);
  const uint64_t a = cache.Remember("0/a", OfTwoRanks(), {}, 1);
  const uint64_t b = cache.Remember("0/b", OfTwoRanks(), {}, 2);
  CHECK(cache.EvictOldest(2) == Ids{a});
  cache.ForgetHeard(2);  // a report from before that may still be on its way
  CHECK(cache.Find(a) != nullptr);
  cache.ForgetHeard(3);
  CHECK(cache.Find(a) == nullptr);
  cache.ForgetHeard(100);
  CHECK(cache.FindAlive(b) != nullptr);
}

}  // namespace
}  // namespace horon
