// Topologies whose links are the same in every round.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "ops/gossip/topologies.h"

namespace horon::gossip {
namespace {

Schedule Static(Links links) {
  return {1, [links = std::move(links)](int64_t) { return links; }, nullptr};
}

Result<Schedule> Complete(int size, const Parameters&) {
  std::vector<int> offsets;
  for (int offset = 1; offset < size; ++offset) offsets.push_back(offset);
  return Static(Circulant(size, offsets));
}

Result<Schedule> Ring(int size, const Parameters&) { return Static(Circulant(size, {1, -1})); }

Result<Schedule> RingOneWay(int size, const Parameters&) { return Static(Circulant(size, {1})); }

Result<Schedule> Star(int size, const Parameters& parameters) {
  const int64_t centre = parameters.at("centre");
  if (centre >= size)
    return Status::InvalidArgument("the centre of a star of " + std::to_string(size) +
                                   " participants cannot be " + std::to_string(centre));
  Links links(static_cast<size_t>(size), {static_cast<int>(centre)});
  for (int i = 0; i < size; ++i) links[static_cast<size_t>(centre)].push_back(i);
  return Static(Tidy(std::move(links)));
}

// rows x columns participants, rows as close to columns as the size allows.
Links Mesh(int size, bool wraps) {
  int rows = static_cast<int>(std::sqrt(static_cast<double>(size)));
  while (size % rows != 0) --rows;
  const int columns = size / rows;
  Links links(static_cast<size_t>(size));
  const auto join = [&](int i, int row, int column) {
    if (!wraps && (row == rows || column == columns)) return;
    const int j = row % rows * columns + column % columns;
    links[static_cast<size_t>(i)].push_back(j);
    links[static_cast<size_t>(j)].push_back(i);
  };
  for (int i = 0; i < size; ++i) {
    join(i, i / columns + 1, i % columns);
    join(i, i / columns, i % columns + 1);
  }
  return Tidy(std::move(links));
}

Result<Schedule> Grid(int size, const Parameters&) { return Static(Mesh(size, false)); }
Result<Schedule> Torus(int size, const Parameters&) { return Static(Mesh(size, true)); }

Result<Schedule> StaticExponential(int size, const Parameters&) {
  std::vector<int> offsets;
  for (int k = 0; k < LogOf(size); ++k) offsets.push_back(1 << k);
  return Static(Circulant(size, offsets));
}

Result<Schedule> SymmetricExponential(int size, const Parameters& parameters) {
  std::vector<int> offsets;
  for (int64_t far = 1; far <= size / 2; far *= parameters.at("b")) {
    offsets.push_back(static_cast<int>(far));
    offsets.push_back(static_cast<int>(-far));
  }
  return Static(Circulant(size, offsets));
}

Result<Schedule> Hypercube(int size, const Parameters&) {
  if (!std::has_single_bit(static_cast<unsigned>(size)))
    return Status::InvalidArgument("a hypercube needs 2^k participants, not " +
                                   std::to_string(size) +
                                   "; one_peer_hypercube and base take any number");
  Links links(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    for (int k = 1; k < size; k *= 2) links[static_cast<size_t>(i)].push_back(i ^ k);
  }
  return Static(Tidy(std::move(links)));
}

}  // namespace

int LogOf(int size) { return std::bit_width(static_cast<unsigned>(size - 1)); }

std::vector<Family> StaticTopologies() {
  return {{"complete", {}, Complete},
          {"ring", {}, Ring},
          {"ring_one_way", {}, RingOneWay},
          {"star", {{"centre", 0, 0}}, Star},
          {"grid", {}, Grid},
          {"torus", {}, Torus},
          {"static_exponential", {}, StaticExponential},
          {"symmetric_exponential", {{"b", 2, 2}}, SymmetricExponential},
          {"hypercube", {}, Hypercube}};
}

}  // namespace horon::gossip
