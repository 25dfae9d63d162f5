// Batches on the host, against element by element.
#include "runtime/device/batch.h"

#include <cmath>
#include <limits>

#include "test/support/catch.h"
#include "test/support/reference.h"
#include "test/unit/device/elements.h"

namespace horon {
namespace {

using test::Elements;
using test::kFloats;

TEST_CASE("segments are moved, scaled and converted", "[kernels]") {
  for (const DataType from : kFloats) {
    for (const DataType to : kFloats) {
      for (const int64_t count : {0, 1, 7, 4099}) {
        Elements in(from, count, 1), out(to, count, 3);
        for (int64_t i = 0; i < count; ++i) in.set(i, static_cast<double>(i % 100) - 50.0);
        const Piece piece{in.data(), out.data(), count};
        MoveAll(from, to, 0.5, {&piece, 1});
        for (int64_t i = 0; i < count; ++i) REQUIRE(out.at(i) == 0.5 * in.at(i));
        REQUIRE(out.guarded());
      }
    }
  }
  REQUIRE(CanMove(DataType::kInt16, DataType::kInt16));
  REQUIRE(!CanMove(DataType::kInt16, DataType::kFloat32));
}

TEST_CASE("a double is scaled before it is narrowed", "[kernels]") {
  Elements in(DataType::kFloat64, 1), out(DataType::kFloat32, 1);
  in.set(0, 1e40);
  const Piece piece{in.data(), out.data(), 1};
  MoveAll(DataType::kFloat64, DataType::kFloat32, 1e-30, {&piece, 1});
  REQUIRE(std::fabs(out.at(0) - 1e10) < 1e4);
}

TEST_CASE("inputs are mixed by weight", "[kernels]") {
  for (const DataType dtype : kFloats) {
    for (const int64_t count : {1, 17, 5000}) {
      Elements a(dtype, count), b(dtype, count, 1), c(dtype, count);
      for (int64_t i = 0; i < count; ++i) {
        a.set(i, static_cast<double>(i % 8));
        b.set(i, static_cast<double>(i % 5) - 2.0);
        c.set(i, 4.0);
      }
      const double weights[] = {0.5, 0.25, 0.25};
      const std::byte* inputs[] = {a.data(), b.data(), c.data()};
      MixInto(dtype, weights, inputs, c.data(), count);  // in place
      for (int64_t i = 0; i < count; ++i) REQUIRE(c.at(i) == 0.5 * a.at(i) + 0.25 * b.at(i) + 1.0);
      REQUIRE(c.guarded());
    }
  }
}

TEST_CASE("pairs are multiplied and combined one by one", "[kernels]") {
  Elements a(DataType::kFloat32, 3), b(DataType::kFloat32, 3), out(DataType::kFloat32, 3);
  for (int64_t i = 0; i < 3; ++i) {
    a.set(i, static_cast<double>(i + 1));
    b.set(i, 2.0);
  }
  const Pair pairs[] = {{a.data(), b.data(), out.data(), 2, 1.0, 0.5},
                        {a.data() + 8, b.data() + 8, out.data() + 8, 1, 3.0, -1.0},
                        {nullptr, nullptr, nullptr, 0}};
  Dots sums[3];
  DotAll(DataType::kFloat32, pairs, sums);
  REQUIRE((sums[0].ab == 6 && sums[0].aa == 5 && sums[0].bb == 8));
  REQUIRE((sums[1].ab == 6 && sums[1].aa == 9 && sums[1].bb == 4));
  REQUIRE((sums[2].ab == 0 && sums[2].aa == 0 && sums[2].bb == 0));
  CombineAll(DataType::kFloat32, pairs);
  REQUIRE((out.at(0) == 2 && out.at(1) == 3 && out.at(2) == 7));
}

}  // namespace
}  // namespace horon
