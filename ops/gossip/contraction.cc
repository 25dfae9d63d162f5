#include "ops/gossip/contraction.h"

#include <algorithm>
#include <cmath>

namespace horon::gossip {
namespace {

Matrix Identity(size_t n) {
  Matrix matrix(n * n);
  for (size_t i = 0; i < n; ++i) matrix[i * n + i] = 1;
  return matrix;
}

Matrix Times(const Round& round, const Matrix& before) {
  const size_t n = round.self.size();
  Matrix after(n * n);
  for (size_t i = 0; i < n; ++i) {
    double* row = &after[i * n];
    const auto add = [&](size_t from, double weight) {
      for (size_t c = 0; c < n; ++c) row[c] += weight * before[from * n + c];
    };
    add(i, round.self[i]);
    for (const Neighbor& neighbor : round.from[i])
      add(static_cast<size_t>(neighbor.rank), neighbor.weight);
  }
  return after;
}

// What is left to the exact average; rows are divided by their sums first.
Matrix Disagreement(Matrix product, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t c = 0; c < n; ++c) sum += product[i * n + c];
    for (size_t c = 0; c < n; ++c)
      product[i * n + c] = product[i * n + c] / sum - 1.0 / static_cast<double>(n);
  }
  return product;
}

// transpose(matrix) * matrix
Matrix Gram(const Matrix& matrix, size_t n) {
  Matrix gram(n * n);
  for (size_t r = 0; r < n; ++r) {
    const double* row = &matrix[r * n];
    for (size_t i = 0; i < n; ++i) {
      if (row[i] == 0) continue;
      for (size_t c = 0; c < n; ++c) gram[i * n + c] += row[i] * row[c];
    }
  }
  return gram;
}

struct Tridiagonal {
  std::vector<double> diagonal, beside;  // beside[i] joins i and i+1
};

// Reflects row `at` of a symmetric matrix so that only one element beside the diagonal is left;
// gives that element.
double Reflect(Matrix& a, size_t n, size_t at) {
  double* v = &a[at * n];
  double norm = 0;
  for (size_t i = at + 1; i < n; ++i) norm = std::hypot(norm, v[i]);
  if (norm == 0) return 0;
  const double left = v[at + 1] > 0 ? -norm : norm;
  v[at + 1] -= left;
  double square = 0;
  for (size_t i = at + 1; i < n; ++i) square += v[i] * v[i];
  if (square == 0) return left;
  std::vector<double> p(n);
  double along = 0;
  for (size_t i = at + 1; i < n; ++i) {
    for (size_t c = at + 1; c < n; ++c) p[i] += a[i * n + c] * v[c];
    p[i] *= 2 / square;
    along += p[i] * v[i] / square;
  }
  for (size_t i = at + 1; i < n; ++i) p[i] -= along * v[i];
  for (size_t i = at + 1; i < n; ++i) {
    for (size_t c = at + 1; c < n; ++c) a[i * n + c] -= v[i] * p[c] + p[i] * v[c];
  }
  return left;
}

// Householder's reduction of a symmetric matrix.
Tridiagonal Reduce(Matrix a, size_t n) {
  Tridiagonal t{std::vector<double>(n), std::vector<double>(n)};
  for (size_t at = 0; at < n; ++at) {
    t.diagonal[at] = a[at * n + at];
    if (at + 1 < n) t.beside[at] = Reflect(a, n, at);
  }
  return t;
}

// Whether all eigenvalues are below `bound`: Sturm's sequence has no change of sign.
bool AllBelow(const Tridiagonal& t, double bound) {
  double pivot = 1;
  for (size_t i = 0; i < t.diagonal.size(); ++i) {
    const double joined = i == 0 ? 0 : t.beside[i - 1] * t.beside[i - 1] / pivot;
    pivot = bound - t.diagonal[i] - joined;
    if (pivot <= 0) return false;
  }
  return true;
}

double LargestEigenvalue(const Tridiagonal& t) {
  double low = 0, high = 0;
  for (size_t i = 0; i < t.diagonal.size(); ++i) {
    const double before = i == 0 ? 0 : std::fabs(t.beside[i - 1]);
    high = std::max(high, std::fabs(t.diagonal[i]) + before + std::fabs(t.beside[i]));
  }
  high *= 1.0000001;  // strictly above all of them
  for (int step = 0; step < 120 && high > low; ++step) {
    const double middle = low + (high - low) / 2;
    (AllBelow(t, middle) ? high : low) = middle;
  }
  return high;
}

double FrobeniusNorm(const Matrix& matrix) {
  double sum = 0;
  for (const double x : matrix) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

double LargestSingularValue(const Matrix& matrix, int size) {
  const auto n = static_cast<size_t>(size);
  return std::sqrt(LargestEigenvalue(Reduce(Gram(matrix, n), n)));
}

Matrix Product(const Graph& graph, int64_t first, int64_t rounds) {
  Matrix product = Identity(static_cast<size_t>(graph.size()));
  for (int64_t t = 0; t < rounds; ++t) product = Times(graph.At(first + t), product);
  return product;
}

double Contraction(const Graph& graph, int64_t first, int64_t rounds) {
  const auto n = static_cast<size_t>(graph.size());
  return LargestSingularValue(Disagreement(Product(graph, first, rounds), n), graph.size());
}

int64_t RoundsFor(const Graph& graph, int64_t first, double tolerance, int64_t most) {
  const auto n = static_cast<size_t>(graph.size());
  Matrix product = Identity(n);
  for (int64_t rounds = 0; rounds <= most; ++rounds) {
    const Matrix left = Disagreement(product, n);
    // The 2-norm is at least the root of a mean, which costs less.
    if (FrobeniusNorm(left) / std::sqrt(static_cast<double>(n)) <= tolerance &&
        LargestSingularValue(left, graph.size()) <= tolerance)
      return rounds;
    product = Times(graph.At(first + rounds), product);
  }
  return -1;
}

}  // namespace horon::gossip
