// The tree of Adasum: who combines with whom.
#include "ops/adasum/tree.h"
#include "test/support/catch.h"

namespace horon::adasum {
namespace {

TEST_CASE("any tree: every participant's meetings fit its peer's", "[adasum]") {
  for (int n = 1; n <= 40; ++n) {
    std::vector<int64_t> leaves;
    for (int i = 0; i < n; ++i) leaves.push_back(1 + i % 3);
    int folded = 0;
    for (int i = 0; i < n; ++i) {
      const Tree mine(leaves, i);
      folded += mine.folded() ? 1 : 0;
      double all = 0;
      for (const auto* meetings : {&mine.fold(), &mine.levels()}) {
        for (const Meeting& meeting : *meetings) {
          const Tree theirs(leaves, meeting.peer);
          const auto& same = meetings == &mine.fold() ? theirs.fold() : theirs.levels();
          const Meeting& back = same[static_cast<size_t>(meeting.level)];
          CHECK(back.peer == i);
          CHECK(back.first != meeting.first);
          CHECK(meeting.first == (i < meeting.peer));
          CHECK(back.leaves_a == meeting.leaves_a);
          CHECK(back.leaves_b == meeting.leaves_b);
          all = meeting.leaves_a + meeting.leaves_b;
        }
      }
      double everything = 0;
      for (const int64_t count : leaves) everything += static_cast<double>(count);
      if (!mine.folded() && n > 1) CHECK(all == everything);  // the last one is the root
    }
    int power = 1;
    while (2 * power <= n) power *= 2;
    CHECK(folded == n - power);
  }
}

}  // namespace
}  // namespace horon::adasum
