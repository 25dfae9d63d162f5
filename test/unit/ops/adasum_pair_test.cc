// The pair formula's identities on vectors drawn at random: of every angle, length and number of
// leaves, in trees of any shape. The numbers are those of docs/algorithms.md.
#include <algorithm>
#include <limits>

#include "ops/adasum/pair.h"
#include "test/support/catch.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon::adasum {
namespace {

using test::Inner;
using test::Norm;
using test::Plus;
using test::RelativeGap;
using test::Scaled;
using test::Summand;
using test::Values;

constexpr double kSmall = 1e-11, kEps = std::numeric_limits<double>::epsilon();

Values Combined(const Values& a, const Values& b, double leaves_a = 1, double leaves_b = 1,
                ZeroPolicy zeros = ZeroPolicy::kSum) {
  const Dots dots{Inner(a, b), Inner(a, a), Inner(b, b)};
  const Coefficients c = CoefficientsOf(dots, leaves_a, leaves_b, zeros);
  return Plus(Scaled(c.a, a), Scaled(c.b, b));
}

double Between(std::mt19937& random, double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(random);
}
Values Random(std::mt19937& random, size_t count) {
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& value : values) value = normal(random);
  return values;
}
// With no part of v in it.
Values Orthogonal(const Values& u, const Values& v) {
  return Plus(u, Scaled(-Inner(u, v) / Inner(v, v), v));
}

// Two vectors, and how many gradients they stand for.
struct Pair {
  Values a, b;
  double leaves_a, leaves_b;
  std::mt19937 random;  // for whatever else a test wants of this draw

  size_t count() const { return a.size(); }
  double scale() const { return Norm(a) + Norm(b); }
  double share_a() const { return leaves_a / (leaves_a + leaves_b); }
};

// The test case runs once for every draw. Of three, two have one of the angles that matter.
Pair Draw() {
  const unsigned draw = GENERATE(range(0u, 240u));
  UNSCOPED_INFO("draw " << draw);
  constexpr double kCosines[] = {-1, -0.999, -0.5, -0.01, 0, 1e-6, 0.3, 0.9, 0.9999, 1};
  std::mt19937 random(draw + 1);
  Pair pair;
  const size_t count = 2 + random() % 60;
  const double cosine = draw % 3 == 0 ? Between(random, -1, 1) : kCosines[draw % 10];
  const double length = std::pow(10, Between(random, -4, 4));
  pair.a = Random(random, count);
  const Values v = Orthogonal(Random(random, count), pair.a);
  pair.b = Plus(Scaled(cosine * length / Norm(pair.a), pair.a),
                Scaled(std::sqrt(1 - cosine * cosine) * length / Norm(v), v));
  pair.leaves_a = 1 + static_cast<double>(random() % 9);
  pair.leaves_b = 1 + static_cast<double>(random() % 9);
  pair.random = random;
  return pair;
}

// The root of a tree, and what rounding may have done to it by A12.
struct Root {
  Summand sum;
  double error;
};

// Any two of the row are combined, until one is left: a tree of a shape drawn at random.
Root AnyTree(const std::vector<Summand>& leaves, std::mt19937& random) {
  std::vector<Root> row;
  for (const Summand& leaf : leaves) row.push_back({leaf, kEps * Norm(leaf.value)});
  while (row.size() > 1) {
    std::shuffle(row.begin(), row.end(), random);
    const auto [x, error_x] = row[row.size() - 1];
    const auto [y, error_y] = row[row.size() - 2];
    const double size_x = Norm(x.value), size_y = Norm(y.value), all = x.leaves + y.leaves;
    const auto turned = [](double error, double size) { return size > error ? error / size : 1.0; };
    const double error = error_x + x.leaves / all * size_y * turned(error_x, size_x) + error_y +
                         y.leaves / all * size_x * turned(error_y, size_y) +
                         4 * kEps * (size_x + size_y);
    row.pop_back();
    row.back() = {{Combined(x.value, y.value, x.leaves, y.leaves), all}, error};
  }
  return row[0];
}

TEST_CASE("A1: the order of the two does not matter", "[adasum]") {
  const Pair p = Draw();
  CHECK(Combined(p.a, p.b) == Combined(p.b, p.a));
  CHECK(RelativeGap(Combined(p.a, p.b, p.leaves_a, p.leaves_b),
                    Combined(p.b, p.a, p.leaves_b, p.leaves_a)) < kSmall);
}

TEST_CASE("A2: a common factor goes through, two different ones do not", "[adasum]") {
  Pair p = Draw();
  const double s = std::pow(10, Between(p.random, -6, 8)) * (p.random() % 2 == 0 ? 1 : -1);
  const Values both = Combined(Scaled(s, p.a), Scaled(s, p.b), p.leaves_a, p.leaves_b);
  const Values after = Scaled(s, Combined(p.a, p.b, p.leaves_a, p.leaves_b));
  CHECK(Norm(Plus(both, Scaled(-1, after))) < kSmall * std::fabs(s) * p.scale());
  const Values a = {1, 0}, b = {1, 1};
  CHECK(RelativeGap(Combined(Scaled(2, a), b), Plus(Combined(a, b), a)) > 0.1);
}

TEST_CASE("A3: turning or mirroring both does so with the result", "[adasum]") {
  Pair p = Draw();
  const Values normal = Random(p.random, p.count());
  const double angle = Between(p.random, -3, 3);
  const auto turned = [&](Values v) {  // mirrored, then turned in the planes of neighbours
    v = Plus(v, Scaled(-2 * Inner(v, normal) / Inner(normal, normal), normal));
    for (size_t i = 0; i + 1 < v.size(); ++i) {
      const double x = v[i], y = v[i + 1];
      v[i] = std::cos(angle) * x - std::sin(angle) * y;
      v[i + 1] = std::sin(angle) * x + std::cos(angle) * y;
    }
    return v;
  };
  const Values after = turned(Combined(p.a, p.b, p.leaves_a, p.leaves_b));
  const Values before = Combined(turned(p.a), turned(p.b), p.leaves_a, p.leaves_b);
  CHECK(Norm(Plus(before, Scaled(-1, after))) < kSmall * p.scale());
}

TEST_CASE("A4: orthogonal vectors are added, whatever they stand for", "[adasum]") {
  Pair p = Draw();
  for (size_t i = 0; i < p.count(); ++i) (i % 2 == 0 ? p.a : p.b)[i] = 0;
  CHECK(Combined(p.a, p.b, p.leaves_a, p.leaves_b) == Plus(p.a, p.b));
  const Values b = Scaled(Norm(p.b), Orthogonal(Random(p.random, p.count()), p.a));
  const Values sum = Combined(p.a, b, p.leaves_a, p.leaves_b);
  CHECK(Norm(Plus(sum, Scaled(-1, Plus(p.a, b)))) < kSmall * (Norm(p.a) + Norm(b)));
}

TEST_CASE("A5: parallel vectors are averaged by their leaves, opposite ones too", "[adasum]") {
  Pair p = Draw();
  const double factor = std::pow(10, Between(p.random, -6, 6)) * (p.random() % 2 == 0 ? 1 : -1);
  const double mean = p.share_a() + (1 - p.share_a()) * factor;
  const Values b = Scaled(factor, p.a);
  const Values gap = Plus(Combined(p.a, b, p.leaves_a, p.leaves_b), Scaled(-mean, p.a));
  CHECK(Norm(gap) < kSmall * (Norm(p.a) + Norm(b)));
  CHECK(RelativeGap(Combined(p.a, p.a), p.a) < kSmall);
  CHECK(Norm(Combined(p.a, Scaled(-1, p.a))) < kSmall * Norm(p.a));
}

TEST_CASE("A6: a zero changes nothing; two zeros give zero", "[adasum]") {
  const Pair p = Draw();
  const Values zero(p.count());
  CHECK(Combined(p.a, zero, p.leaves_a, p.leaves_b) == p.a);
  CHECK(Combined(zero, p.a, p.leaves_a, p.leaves_b) == p.a);
  CHECK(Combined(zero, zero, p.leaves_a, p.leaves_b) == zero);
}

TEST_CASE("A7: the length in closed form", "[adasum]") {
  const Pair p = Draw();
  const double s = Inner(p.a, p.a) + Inner(p.b, p.b), both = Norm(p.a) * Norm(p.b);
  const double c = Inner(p.a, p.b) / both;
  const double squared = s * (1 - 0.75 * c * c) + 0.5 * both * c * c * c;
  const Values result = Combined(p.a, p.b);
  CHECK(std::fabs(Inner(result, result) - squared) < kSmall * s);
}

TEST_CASE("A8: no shorter than the mean, no longer than what orthogonal ones give", "[adasum]") {
  const Pair p = Draw();
  const double squares = Inner(p.a, p.a) + Inner(p.b, p.b);
  const Values result = Combined(p.a, p.b);
  CHECK(Norm(result) >= 0.5 * Norm(Plus(p.a, p.b)) - kSmall * p.scale());
  CHECK(Inner(result, result) <= squares * (1 + kSmall));
  // Both bounds are reached.
  CHECK(Norm(Combined(p.a, p.a)) == Approx(0.5 * Norm(Plus(p.a, p.a))).epsilon(kSmall));
  Values even = p.a, odd = p.b;
  for (size_t i = 0; i < p.count(); ++i) (i % 2 == 0 ? odd : even)[i] = 0;
  CHECK(Norm(Combined(even, odd)) == Approx(std::hypot(Norm(even), Norm(odd))).epsilon(kSmall));
}

TEST_CASE("A8: in no tree does a combination get longer than its leaves' squares allow",
          "[adasum]") {
  Pair p = Draw();
  const int leaves = 1 + static_cast<int>(p.random() % 19);
  std::vector<Summand> row;
  double squares = 0;
  for (int i = 0; i < leaves; ++i) {  // with something in common, or against each other
    const Values own = Random(p.random, p.count());
    row.push_back({Plus(Scaled(Between(p.random, -2, 2), p.a), Scaled(Norm(p.b), own)), 1});
    squares += Inner(row.back().value, row.back().value);
  }
  const Summand root = AnyTree(row, p.random).sum;
  CHECK(root.leaves == leaves);
  CHECK(Inner(root.value, root.value) <= squares * (1 + kSmall));
}

TEST_CASE("A9: it is not associative, so the tree belongs to the definition", "[adasum]") {
  Pair p = Draw();
  std::vector<Values> three;
  for (int i = 0; i < 3; ++i) {
    three.push_back(Plus(Scaled(1 / Norm(p.a), p.a), Scaled(0.5, Random(p.random, p.count()))));
  }
  const Values left = Combined(Combined(three[0], three[1]), three[2]);
  CHECK(RelativeGap(left, Combined(three[0], Combined(three[1], three[2]))) > 1e-3);
}

TEST_CASE("A10: coefficients of two tensors are not those of both as one", "[adasum]") {
  Pair p = Draw();
  const auto joined = [](Values one, const Values& other) {
    one.insert(one.end(), other.begin(), other.end());
    return one;
  };
  // One tensor that the two have in common, and one in which they are apart.
  const Values left = Random(p.random, p.count());
  const Values right =
      Scaled(Norm(left) / Norm(p.a), Orthogonal(Random(p.random, p.count()), left));
  const Values apart = joined(Combined(p.a, p.a), Combined(left, right));
  CHECK(RelativeGap(Combined(joined(p.a, left), joined(p.a, right)), apart) > 1e-3);
}

TEST_CASE("A11: it jumps at zero, by what of the other vector lies along the one", "[adasum]") {
  Pair p = Draw();
  const Values unit = Scaled(1 / Norm(p.a), p.a);
  const double along = Inner(unit, p.b);
  // What the combination tends to while a goes to zero along its direction.
  const Values limit = Plus(p.b, Scaled(-p.share_a() * along, unit));
  for (const double length : {1e-3, 1e-9, 1e-30, 1e-70}) {
    const Values near = Combined(Scaled(length, unit), p.b, p.leaves_a, p.leaves_b);
    CHECK(Norm(Plus(near, Scaled(-1, limit))) <= length + kSmall * Norm(p.b));
  }
  const Values zero(p.count());
  const Values there = Combined(zero, p.b, p.leaves_a, p.leaves_b);
  CHECK(there == p.b);
  const double jump = Norm(Plus(there, Scaled(-1, limit)));
  CHECK(std::fabs(jump - p.share_a() * std::fabs(along)) < kSmall * Norm(p.b));
  // The zero policy: on a line there is no jump, and what are no zeros stays as it is.
  const auto mean = [&](const Values& a, const Values& b) {
    return Combined(a, b, p.leaves_a, p.leaves_b, ZeroPolicy::kMean);
  };
  CHECK(RelativeGap(mean(zero, p.b), Scaled(1 - p.share_a(), p.b)) < kSmall);
  CHECK(RelativeGap(mean(p.b, zero), Scaled(p.share_a(), p.b)) < kSmall);
  CHECK(mean({1e-30}, {4})[0] == Approx(mean({0}, {4})[0]));
  CHECK(mean(zero, zero) == zero);
  CHECK(mean(p.a, p.b) == Combined(p.a, p.b, p.leaves_a, p.leaves_b));
}

// |Ada(a + d, b) - Ada(a, b)| <= |d| (1 + share |b|/|a|): a small difference of large gradients
// carries their errors into the whole result.
TEST_CASE("A12: an error goes through by the other's length over the vector's own, no more",
          "[adasum]") {
  Pair p = Draw();
  const double size = Norm(p.a) * std::pow(10, Between(p.random, -6, -1));
  const auto change = [&](const Values& error, const Values& b) {
    return Norm(Plus(Combined(Plus(p.a, error), b, p.leaves_a, p.leaves_b),
                     Scaled(-1, Combined(p.a, b, p.leaves_a, p.leaves_b))));
  };
  const Values any = Random(p.random, p.count());
  const Values error = Scaled(size / Norm(any), any);
  const double most = size * (1 + p.share_a() * Norm(p.b) / Norm(p.a));
  CHECK(change(error, p.b) <= most + kSmall * p.scale());
  // Reached where b is opposite to a and the error orthogonal to both.
  const Values aside = Orthogonal(any, p.a), opposite = Scaled(-Norm(p.b) / Norm(p.a), p.a);
  const double reached = change(Scaled(1e-4 * Norm(p.a) / Norm(aside), aside), opposite);
  CHECK(reached == Approx(1e-4 * (Norm(p.a) + p.share_a() * Norm(p.b))).epsilon(1e-3));
}

TEST_CASE("A12: parallel vectors that nearly cancel keep the digits that A12 leaves them",
          "[adasum]") {
  Pair p = Draw();
  std::vector<Summand> row;
  Values mean(p.count());
  for (int i = 0; i < 14; ++i) {
    const double length = i % 2 == 0 ? 1 + 1e-6 * Between(p.random, -1, 1) : -1.0;
    row.push_back({Scaled(length, p.a), 1});
    mean = Plus(mean, Scaled(1.0 / 14, row.back().value));
  }
  const Root root = AnyTree(row, p.random);
  CHECK(Norm(Plus(root.sum.value, Scaled(-1, mean))) <= root.error);
}

TEST_CASE("A13: a NaN or Inf in either vector makes every element NaN", "[adasum]") {
  Pair p = Draw();
  const double infinity = std::numeric_limits<double>::infinity();
  const double bad = GENERATE_COPY(std::nan(""), infinity, -infinity);
  p.a[p.random() % p.count()] = bad;
  for (const Values& other : {p.b, Values(p.count()), p.a}) {
    for (const double x : Combined(p.a, other, p.leaves_a, p.leaves_b)) CHECK(std::isnan(x));
    for (const double x : Combined(other, p.a, p.leaves_a, p.leaves_b)) CHECK(std::isnan(x));
  }
}

}  // namespace
}  // namespace horon::adasum
