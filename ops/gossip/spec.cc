#include "ops/gossip/spec.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "runtime/base/nearest.h"

namespace horon::gossip {
namespace {

constexpr int64_t kMostParticipants = 1 << 20;
// Larger graphs are made, and judged, once it is known that there are so many participants.
constexpr int64_t kMostMadeUnasked = 256;
constexpr int64_t kMostCustomRows = 1 << 20;  // participants times rounds
constexpr int kLargestAutoBase = 128;         // beyond, its period is longer than it is exact

const Family* FindFamily(const std::string& name) {
  for (const Family& topology : Topologies()) {
    if (name == topology.name) return &topology;
  }
  return nullptr;
}

std::vector<std::string_view> KnownNames() {
  std::vector<std::string_view> names{"auto"};
  for (const Family& topology : Topologies()) names.push_back(topology.name);
  names.push_back("custom");
  return names;
}

// Exact averages after a few rounds: with one partner a round where the size allows it.
const char* Automatic(int size) {
  const bool power = std::has_single_bit(static_cast<unsigned>(size));
  return power || size > kLargestAutoBase ? "one_peer_exponential" : "base";
}

Parameters Defaults(const Family& topology) {
  Parameters parameters;
  for (const Parameter& parameter : topology.parameters)
    parameters[parameter.name] = parameter.fallback.value_or(0);
  return parameters;
}

Status ReadParameters(const Family& topology, OpArguments& arguments, Parameters& parameters) {
  for (const Parameter& parameter : topology.parameters) {
    HORON_ASSIGN(const int64_t value, arguments.Integer(parameter.name, parameter.fallback));
    if (value < parameter.least || value > kMostParticipants)
      return arguments.Wrong(std::string(parameter.name) + " must be from " +
                             std::to_string(parameter.least) + " to " +
                             std::to_string(kMostParticipants));
    parameters[parameter.name] = value;
  }
  return Status::Ok();
}

Status ReadMixing(OpArguments& arguments, GraphSpec& spec) {
  const std::vector<std::string> names = {"natural", "uniform", "push", "metropolis"};
  HORON_ASSIGN(const std::string mixing, arguments.Choice("mixing", names));
  spec.weights =
      static_cast<Weights>(std::find(names.begin(), names.end(), mixing) - names.begin());
  HORON_ASSIGN(spec.lazy, ReadFlag(arguments, "lazy"));
  return Status::Ok();
}

Status ReadCustom(OpArguments& arguments, GraphSpec& spec) {
  const auto edges = arguments.Text("edges");
  if (!edges || spec.size == 0) return arguments.Wrong("a custom graph needs n and edges");
  const int64_t rounds = 1 + std::count(edges->begin(), edges->end(), '/');
  if (rounds > kMostCustomRows / spec.size)
    return arguments.Wrong("a custom graph's participants times its rounds must be at most " +
                           std::to_string(kMostCustomRows));
  auto custom = ReadEdges(*edges, static_cast<int>(spec.size));
  if (!custom.ok()) return arguments.Wrong(custom.status().message());
  spec.custom = std::move(custom.value().rounds);
  spec.weighted = custom.value().weighted;
  return Status::Ok();
}

// Links that are given the weights of the spec, and halves of them where it asks for that.
Result<Round> Weighed(const Round& round, const GraphSpec& spec) {
  const bool keep = spec.weights == Weights::kNatural;
  if (spec.weights == Weights::kMetropolis && !Symmetric(LinksOf(round)))
    return Status::InvalidArgument(
        "metropolis weights need a graph in which everybody hears those it sends to, and '" +
        spec.name + "' is not one: use uniform or push");
  Round weighed = keep ? round : Weigh(LinksOf(round), spec.weights);
  return spec.lazy ? Lazy(std::move(weighed)) : weighed;
}

}  // namespace

Result<bool> ReadFlag(OpArguments& arguments, const std::string& key) {
  HORON_ASSIGN(const int64_t value, arguments.Integer(key, 0));
  if (value != 0 && value != 1) return arguments.Wrong(key + " must be 0 or 1");
  return value == 1;
}

Result<GraphSpec> GraphSpec::Read(OpArguments& arguments) {
  GraphSpec spec;
  spec.name = arguments.Text("graph").value_or("auto");
  HORON_ASSIGN(spec.size, arguments.Integer("n", 0));
  if (spec.size < 0 || spec.size > kMostParticipants)
    return arguments.Wrong("n must be the number of participants");
  HORON_TRY(ReadMixing(arguments, spec));
  if (spec.name == "custom") {
    HORON_TRY(ReadCustom(arguments, spec));
  } else if (const Family* topology = FindFamily(spec.name)) {
    HORON_TRY(ReadParameters(*topology, arguments, spec.parameters));
  } else if (spec.name != "auto") {
    const std::vector<std::string_view> names = KnownNames();
    std::string text = "there is no graph '" + spec.name + "'" + DidYouMean(spec.name, names);
    for (const std::string_view name : names)
      text += (name == names.front() ? "; there are: " : ", ") + std::string(name);
    return arguments.Wrong(text);
  }
  if (spec.size > 0 && spec.size <= kMostMadeUnasked) {
    const auto made = spec.Make(static_cast<int>(spec.size));
    if (!made.ok()) return arguments.Wrong(made.status().message());
  }
  return spec;
}

Result<Graph> GraphSpec::Make(int participants) const {
  if (size > 0 && size != participants)
    return Status::InvalidArgument("its graph is for " + std::to_string(size) +
                                   " participants, but there are " + std::to_string(participants));
  Graph::Maker rounds;
  int64_t period = static_cast<int64_t>(custom.size());
  if (name == "custom") {
    auto kept = std::make_shared<const std::vector<Round>>(custom);
    rounds = [kept](int64_t t) { return (*kept)[static_cast<size_t>(t)]; };
  } else {
    const Family* topology = FindFamily(name == "auto" ? Automatic(participants) : name);
    HORON_ASSIGN(Schedule schedule,
                 topology->make(participants, name == "auto" ? Defaults(*topology) : parameters));
    period = schedule.period;
    rounds = schedule.rounds ? std::move(schedule.rounds)
                             : [links = std::move(schedule.links)](int64_t t) {
                                 return Weigh(links(t), Weights::kNatural);
                               };
  }
  // Whether the weights suit the links shows in every round alike, but for graphs of the user's
  // own.
  for (int64_t t = 0; t < std::max<int64_t>(1, period); ++t)
    HORON_TRY(Weighed(rounds(t), *this).status());
  return Graph(participants, period,
               [rounds, spec = *this](int64_t t) { return Weighed(rounds(t), spec).value(); });
}

}  // namespace horon::gossip
