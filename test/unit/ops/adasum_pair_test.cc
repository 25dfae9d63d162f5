// The pair formula's identities, on random vectors of every angle, length and leaf count.
#include <limits>

#include "ops/adasum/pair.h"
#include "ops/adasum/tree.h"
#include "test/support/catch.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon::adasum {
namespace {

using test::Inner;
using test::Norm;
using test::Plus;
using test::RelativeGap;
using test::Scaled;
using test::Values;

constexpr double kSmall = 1e-11;

Values Combined(const Values& a, const Values& b, double leaves_a = 1, double leaves_b = 1,
                ZeroPolicy zeros = ZeroPolicy::kSum) {
  const Dots dots{Inner(a, b), Inner(a, a), Inner(b, b)};
  const Coefficients c = CoefficientsOf(dots, leaves_a, leaves_b, zeros);
  return Plus(Scaled(c.a, a), Scaled(c.b, b));
}

Values Random(unsigned seed, size_t count = 40) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& value : values) value = normal(random);
  return values;
}

// Two vectors with cos of their angle from -1 to 1 and lengths 8 decades apart at most.
struct Pair {
  Values a, b;
};
std::vector<Pair> Pairs() {
  std::vector<Pair> pairs;
  unsigned seed = 1;
  for (const double cosine : {-1.0, -0.999, -0.5, -0.01, 0.0, 1e-6, 0.3, 0.9, 0.9999, 1.0}) {
    for (const double length : {1e-4, 0.3, 1.0, 7.0, 1e4}) {
      const Values u = Random(seed++);
      Values v = Random(seed++);
      v = Plus(v, Scaled(-Inner(u, v) / Inner(u, u), u));  // orthogonal to u
      const double sine = std::sqrt(1 - cosine * cosine);
      const Values b =
          Plus(Scaled(cosine * length / Norm(u), u), Scaled(sine * length / Norm(v), v));
      pairs.push_back({u, b});
    }
  }
  return pairs;
}

TEST_CASE("A1: the order of the two does not matter", "[adasum]") {
  for (const auto& [a, b] : Pairs()) {
    CHECK(Combined(a, b) == Combined(b, a));
    CHECK(RelativeGap(Combined(a, b, 3, 5), Combined(b, a, 5, 3)) < kSmall);
  }
}

TEST_CASE("A2: a common factor goes through, two different ones do not", "[adasum]") {
  for (const auto& [a, b] : Pairs()) {
    for (const double s : {-2.0, 1e-5, 1024.0, 3e7}) {
      CHECK(RelativeGap(Combined(Scaled(s, a), Scaled(s, b)), Scaled(s, Combined(a, b))) < 1e-9);
    }
  }
  const Values a = {1, 0}, b = {1, 1};
  CHECK(RelativeGap(Combined(Scaled(2, a), b), Plus(Combined(a, b), a)) > 0.1);
}

TEST_CASE("A3: rotating both rotates the result", "[adasum]") {
  const double angle = 0.7;
  const auto rotated = [&](Values v) {  // in the planes of neighbouring coordinates
    for (size_t i = 0; i + 1 < v.size(); ++i) {
      const double x = v[i], y = v[i + 1];
      v[i] = std::cos(angle) * x - std::sin(angle) * y;
      v[i + 1] = std::sin(angle) * x + std::cos(angle) * y;
    }
    return v;
  };
  for (const auto& [a, b] : Pairs()) {
    const Values turned = rotated(Combined(a, b));
    const double gap = Norm(Plus(Combined(rotated(a), rotated(b)), Scaled(-1, turned)));
    CHECK(gap < kSmall * (Norm(a) + Norm(b)));
  }
}

TEST_CASE("A4: orthogonal vectors are added", "[adasum]") {
  for (const double length : {1e-6, 1.0, 1e6}) {
    Values a(10), b(10);
    for (size_t i = 0; i < 10; ++i)
      (i % 2 == 0 ? a : b)[i] = (1.0 + static_cast<double>(i)) * length;
    CHECK(Combined(a, b) == Plus(a, b));
    CHECK(Combined(a, b, 3, 2) == Plus(a, b));
  }
}

TEST_CASE("A5: parallel vectors are averaged by their leaves, opposite ones too", "[adasum]") {
  const Values u = Random(5);
  for (const double alpha : {-3.0, 1e-6, 1.0, 250.0}) {
    for (const double beta : {-250.0, -1.0, 2e-5, 4.0}) {
      for (const double leaves : {1.0, 2.0, 5.0}) {
        const double mean = (alpha + leaves * beta) / (1 + leaves);
        const Values result = Combined(Scaled(alpha, u), Scaled(beta, u), 1, leaves);
        const double size = Norm(u) * (std::fabs(alpha) + std::fabs(beta));
        CHECK(Norm(Plus(result, Scaled(-mean, u))) < kSmall * size);
      }
    }
  }
  CHECK(RelativeGap(Combined(u, u), u) < kSmall);
  CHECK(Norm(Combined(u, Scaled(-1, u))) < kSmall);
}

TEST_CASE("A6: a zero changes nothing; two zeros give zero", "[adasum]") {
  const Values u = Random(6), zero(u.size());
  CHECK(Combined(u, zero) == u);
  CHECK(Combined(zero, u, 4, 1) == u);
  CHECK(Combined(zero, zero) == zero);
}

TEST_CASE("A7: the length in closed form", "[adasum]") {
  for (const auto& [a, b] : Pairs()) {
    const double s = Inner(a, a) + Inner(b, b), p = Norm(a) * Norm(b), c = Inner(a, b) / p;
    const double squared = s * (1 - 0.75 * c * c) + 0.5 * p * c * c * c;
    const Values result = Combined(a, b);
    CHECK(std::fabs(Inner(result, result) - squared) < kSmall * s);
  }
}

TEST_CASE("A8: the length is bounded on both sides", "[adasum]") {
  for (const auto& [a, b] : Pairs()) {
    const Values result = Combined(a, b);
    const double scale = Norm(a) + Norm(b);
    CHECK(Norm(result) >= 0.5 * Norm(Plus(a, b)) - kSmall * scale);
    CHECK(Inner(result, result) <= (Inner(a, a) + Inner(b, b)) * (1 + kSmall));
    const Values weighted = Combined(a, b, 3, 1);
    CHECK(Inner(weighted, weighted) <= (Inner(a, a) + Inner(b, b)) * (1 + kSmall));
  }
}

TEST_CASE("A9: it is not associative, so the tree belongs to the definition", "[adasum]") {
  const Values a = {1, 0}, b = {1, 1}, c = {0, 1};
  CHECK(RelativeGap(Combined(Combined(a, b), c), Combined(a, Combined(b, c))) > 0.05);
}

TEST_CASE("A10: coefficients of two tensors are not those of both as one", "[adasum]") {
  CHECK(RelativeGap(Combined({1}, {1}), {1}) < kSmall);
  CHECK(Combined({1, 2}, {1, -0.5}) == Plus({1, 2}, {1, -0.5}));  // orthogonal as a whole
}

TEST_CASE("A11: it jumps at zero, and the zero policy says where", "[adasum]") {
  const Values b = {4};
  CHECK(Combined({1e-30}, b)[0] == Approx(2.0));
  CHECK(Combined({0}, b)[0] == 4.0);
  CHECK(Combined({0}, b, 1, 1, ZeroPolicy::kMean)[0] == 2.0);
  CHECK(Combined(b, {0}, 1, 3, ZeroPolicy::kMean)[0] == 1.0);
  CHECK(Combined({0}, {0}, 1, 1, ZeroPolicy::kMean)[0] == 0.0);
  CHECK(Combined({1, 0}, {0, 1}, 1, 1, ZeroPolicy::kMean) == Values{1, 1});  // no zeros here
}

TEST_CASE("A12: of near-cancelling parallel vectors a balanced tree keeps what it can",
          "[adasum]") {
  const Values u = Random(12);
  std::vector<test::Summand> row;
  double mean = 0;
  for (int i = 0; i < 16; ++i) {
    const double length = i % 2 == 0 ? 1.0 + 1e-6 * (i + 1) : -1.0;
    mean += length / 16;
    row.push_back({Scaled(length, u), 1});
  }
  while (row.size() > 1) {
    std::vector<test::Summand> next;
    for (size_t i = 0; i < row.size(); i += 2) {
      const auto &x = row[i], &y = row[i + 1];
      next.push_back({Combined(x.value, y.value, x.leaves, y.leaves), x.leaves + y.leaves});
    }
    row = next;
  }
  CHECK(RelativeGap(row[0].value, Scaled(mean, u)) < 1e-5);
}

TEST_CASE("A13: a NaN or Inf in either vector makes every element NaN", "[adasum]") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const double other : {0.0, 1.0, -2.0}) {
      Values a = Random(13), b(a.size(), other);
      a[7] = bad;
      for (const double x : Combined(a, b)) CHECK(std::isnan(x));
      for (const double x : Combined(b, a, 2, 3)) CHECK(std::isnan(x));
    }
  }
}

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
