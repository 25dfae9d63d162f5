// Topologies whose links change from round to round.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/gossip/topologies.h"

namespace horon::gossip {
namespace {

Status NeedsEven(const char* what, int size) {
  return Status::InvalidArgument(std::string(what) + " needs an even number of participants, not " +
                                 std::to_string(size));
}

// Everybody sends `offsets[t]` further on in round t.
Schedule Cycle(int size, std::vector<int> offsets) {
  if (offsets.empty()) offsets = {0};
  const auto period = static_cast<int64_t>(offsets.size());
  return {period,
          [size, offsets = std::move(offsets)](int64_t t) {
            return Circulant(size, {offsets[static_cast<size_t>(t)]});
          },
          nullptr};
}

// Modulo `size`, each once, in order.
std::vector<int> Distinct(int size, const std::vector<int64_t>& offsets) {
  std::vector<int> distinct;
  for (const int64_t offset : offsets) {
    const auto reduced = static_cast<int>((offset % size + size) % size);
    if (reduced != 0 && std::find(distinct.begin(), distinct.end(), reduced) == distinct.end())
      distinct.push_back(reduced);
  }
  return distinct;
}

// Pairs by `partner(i, t)`; -1, or a partner that does not exist, is a round off.
Schedule Pairs(int size, int64_t period, std::function<int(int i, int64_t t)> partner) {
  return {period,
          [size, partner = std::move(partner)](int64_t t) {
            Links links(static_cast<size_t>(size));
            for (int i = 0; i < size; ++i) {
              const int j = partner(i, t);
              if (j >= 0 && j < size) links[static_cast<size_t>(i)].push_back(j);
            }
            return Tidy(std::move(links));
          },
          nullptr};
}

Result<Schedule> RingAlternating(int size, const Parameters&) {
  if (size > 1 && size % 2 != 0) return NeedsEven("ring_alternating", size);
  return Pairs(size, 2, [size](int i, int64_t t) {
    const bool up = (i + t) % 2 == 0;
    return size == 1 ? -1 : (i + (up ? 1 : size - 1)) % size;
  });
}

// Relabels the participants anew in every period of `inner`.
Schedule Rotated(int size, Schedule inner, uint64_t seed) {
  return {0,
          [size, inner = std::move(inner), seed](int64_t t) {
            const auto order = Shuffled(size, seed, static_cast<uint64_t>(t / inner.period));
            const Links plain = inner.links(t % inner.period);
            Links links(plain.size());
            for (size_t v = 0; v < plain.size(); ++v) {
              auto& senders = links[static_cast<size_t>(order[v])];
              for (const int sender : plain[v])
                senders.push_back(order[static_cast<size_t>(sender)]);
            }
            return Tidy(std::move(links));
          },
          nullptr};
}

Schedule PerhapsRotated(int size, Schedule schedule, const Parameters& parameters) {
  if (parameters.at("rotate") == 0) return schedule;
  return Rotated(size, std::move(schedule), static_cast<uint64_t>(parameters.at("seed")));
}

Result<Schedule> OnePeerExponential(int size, const Parameters& parameters) {
  std::vector<int> offsets;
  for (int k = 0; k < LogOf(size); ++k) offsets.push_back(1 << k);
  return PerhapsRotated(size, Cycle(size, offsets), parameters);
}

Result<Schedule> OnePeerHypercube(int size, const Parameters& parameters) {
  const int period = std::max(1, LogOf(size));
  return PerhapsRotated(size, Pairs(size, period, [](int i, int64_t t) { return i ^ (1 << t); }),
                        parameters);
}

Result<Schedule> MPeerExponential(int size, const Parameters& parameters) {
  // More than size - 1 peers do not exist.
  const int64_t peers = std::clamp<int64_t>(parameters.at("k"), 1, std::max(1, size - 1));
  std::vector<std::vector<int>> stages;
  for (int64_t power = 1; power < size; power *= peers + 1) {
    stages.emplace_back();
    for (int64_t j = 1; j <= peers; ++j)
      stages.back().push_back(static_cast<int>(j * power % size));
  }
  if (stages.empty()) stages.emplace_back();
  const auto period = static_cast<int64_t>(stages.size());
  return Schedule{period,
                  [size, stages = std::move(stages)](int64_t t) {
                    return Circulant(size, stages[static_cast<size_t>(t)]);
                  },
                  nullptr};
}

// +1, -1, +2, -2, +4, -4, ...
Result<Schedule> DirectedExponential(int size, const Parameters&) {
  std::vector<int64_t> offsets;
  for (int k = 0; k < LogOf(size); ++k) offsets.push_back(1 << k), offsets.push_back(-(1 << k));
  return Cycle(size, Distinct(size, offsets));
}

// +1, -1, +3, -3, +5, -5, +9, -9, ...: even participants meet odd ones.
Result<Schedule> DirectedBipartiteExponential(int size, const Parameters&) {
  if (size > 1 && size % 2 != 0) return NeedsEven("directed_bipartite_exponential", size);
  std::vector<int64_t> offsets = {1, -1};
  for (int k = 1; k < LogOf(size); ++k) {
    offsets.push_back(1 + (1 << k));
    offsets.push_back(-1 - (1 << k));
  }
  return Cycle(size, Distinct(size, offsets));
}

// +1, -1, +3, -3, +5, ...
Result<Schedule> DirectedLinear(int size, const Parameters&) {
  std::vector<int64_t> offsets;
  for (int far = 1; far < size; far += 2) offsets.push_back(far), offsets.push_back(-far);
  return Cycle(size, Distinct(size, offsets));
}

// 1, 3, 5, ...: every participant of the other parity.
Result<Schedule> DirectedBipartiteLinear(int size, const Parameters&) {
  if (size > 1 && size % 2 != 0) return NeedsEven("directed_bipartite_linear", size);
  std::vector<int64_t> offsets;
  for (int far = 1; far < size; far += 2) offsets.push_back(far);
  return Cycle(size, Distinct(size, offsets));
}

// Odd participants are active: 2a+1 meets 2((a + 2^k - 1) mod size/2).
Result<Schedule> BipartiteExponential(int size, const Parameters&) {
  if (size > 1 && size % 2 != 0) return NeedsEven("bipartite_exponential", size);
  const int half = std::max(1, size / 2);
  return Pairs(size, half == 1 ? 1 : LogOf(half) + 1, [half, size](int i, int64_t t) {
    const int shift = ((1 << t) - 1) % half;
    if (size == 1) return -1;
    return i % 2 == 1 ? 2 * ((i / 2 + shift) % half) : 2 * ((i / 2 - shift + half) % half) + 1;
  });
}

Result<Schedule> ShiftOne(int size, const Parameters&) {
  if (size > 1 && size % 2 != 0) return NeedsEven("shift_one", size);
  const int half = std::max(1, size / 2);
  return Pairs(size, half, [half, size](int i, int64_t t) {
    const auto shift = static_cast<int>(t);
    if (size == 1) return -1;
    return i < half ? (shift + i) % half + half : (i - shift) % half;
  });
}

// A perfect matching drawn anew in every round; an odd one out is off.
Result<Schedule> RandomMatching(int size, const Parameters& parameters) {
  const auto seed = static_cast<uint64_t>(parameters.at("seed"));
  return Schedule{0,
                  [size, seed](int64_t t) {
                    const auto order = Shuffled(size, seed, static_cast<uint64_t>(t));
                    Links links(order.size());
                    for (size_t i = 0; i + 1 < order.size(); i += 2) {
                      links[static_cast<size_t>(order[i])].push_back(order[i + 1]);
                      links[static_cast<size_t>(order[i + 1])].push_back(order[i]);
                    }
                    return links;
                  },
                  nullptr};
}

// One participant of every host looks outside, another one each round; the rest rotate inside.
struct InnerOuter {
  int local, hosts;
  bool exponential;
  int64_t distances(int among) const { return exponential ? std::max(1, LogOf(among)) : 1; }
  int64_t period() const {
    return std::lcm(local * distances(hosts), local > 1 ? distances(local - 1) : 1);
  }
  // Whom member `at` of a cycle of `among` hears, `step` steps into its distances.
  int Before(int at, int among, int64_t step) const {
    const int far = 1 << (step % distances(among));
    return ((at - far) % among + among) % among;
  }
  Links At(int64_t t) const {
    Links links(static_cast<size_t>(local) * static_cast<size_t>(hosts));
    const auto outside = static_cast<int>(t % local);
    for (int host = 0; host < hosts; ++host) {
      for (int member = 0; member < local; ++member) {
        // The distance outside grows once all members have been there, so that all reach all.
        const int sender =
            member == outside
                ? Before(host, hosts, t / local) * local + member
                : host * local +
                      (outside + 1 + Before((member - outside - 1 + local) % local, local - 1, t)) %
                          local;
        links[static_cast<size_t>(host * local + member)].push_back(sender);
      }
    }
    return Tidy(std::move(links));
  }
};

Result<Schedule> MakeInnerOuter(int size, const Parameters& parameters, bool exponential) {
  const int64_t local = parameters.at("local");
  if (size % local != 0)
    return Status::InvalidArgument("hosts of " + std::to_string(local) + " do not divide " +
                                   std::to_string(size) + " participants");
  if (local == 2)
    return Status::InvalidArgument(
        "hosts of 2 never meet inside: one member looks outside each round, and leaves the other "
        "alone; use hosts of 3 or more, or of 1");
  const InnerOuter graph{static_cast<int>(local), static_cast<int>(size / local), exponential};
  return Schedule{graph.period(), [graph](int64_t t) { return graph.At(t); }, nullptr};
}

Result<Schedule> InnerOuterRing(int size, const Parameters& parameters) {
  return MakeInnerOuter(size, parameters, false);
}
Result<Schedule> InnerOuterExponential(int size, const Parameters& parameters) {
  return MakeInnerOuter(size, parameters, true);
}

uint64_t Mixed(uint64_t state) {  // splitmix64: a counter goes in, noise comes out
  state += 0x9e3779b97f4a7c15u;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

}  // namespace

std::vector<int> Shuffled(int size, uint64_t seed, uint64_t key) {
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  uint64_t state = Mixed(Mixed(seed) ^ key);
  for (size_t left = order.size(); left > 1; --left) {
    state = Mixed(state);
    std::swap(order[left - 1], order[state % left]);
  }
  return order;
}

std::vector<Family> DynamicTopologies() {
  const std::vector<Parameter> rotation = {{"rotate", 0, 0}, {"seed", 2403, 0}};
  return {{"ring_alternating", {}, RingAlternating},
          {"one_peer_exponential", rotation, OnePeerExponential},
          {"one_peer_hypercube", rotation, OnePeerHypercube},
          {"m_peer_exponential", {{"k", 2, 1}}, MPeerExponential},
          {"directed_exponential", {}, DirectedExponential},
          {"directed_bipartite_exponential", {}, DirectedBipartiteExponential},
          {"directed_linear", {}, DirectedLinear},
          {"directed_bipartite_linear", {}, DirectedBipartiteLinear},
          {"bipartite_exponential", {}, BipartiteExponential},
          {"base", {{"k", 1, 1}}, MakeBase},
          {"random_matching", {{"seed", 2403, 0}}, RandomMatching},
          {"inner_outer_ring", {{"local", std::nullopt, 1}}, InnerOuterRing},
          {"inner_outer_exponential", {{"local", std::nullopt, 1}}, InnerOuterExponential},
          {"shift_one", {}, ShiftOne}};
}

const std::vector<Family>& Topologies() {
  static const std::vector<Family> all = [] {
    std::vector<Family> both = StaticTopologies();
    for (Family& topology : DynamicTopologies()) both.push_back(std::move(topology));
    return both;
  }();
  return all;
}

}  // namespace horon::gossip
