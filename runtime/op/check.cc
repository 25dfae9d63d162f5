// The sentences with which ranks are told that they disagree. Their first words are Horovod's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/op/op.h"

namespace horon {
namespace {

constexpr size_t kSidesNamed =
    8;  // a thousand ranks with a thousand shapes still give one sentence

// "ranks [0, 2] have float32"
std::string Side(const std::vector<int>& ranks, const std::string& value) {
  std::string text = ranks.size() == 1 ? "rank [" : "ranks [";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text + (ranks.size() == 1 ? "] has " : "] have ") + value;
}

// Shortest text that reads back as the same number.
std::string Exact(double value) {
  char text[32];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

std::string GroupText(const Request& request) {
  if (request.group.empty()) return "no group";
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(request.group_hash));
  return "group '" + request.group + "' of " + std::to_string(request.group_size) +
         " tensors (their names hash to " + hash + ")";
}

}  // namespace

Status CheckSame(std::span<const Request* const> by_rank, std::span<const int> ranks,
                 const std::string& what, const std::function<std::string(const Request&)>& value) {
  std::vector<std::pair<std::string, std::vector<int>>> sides;  // in the order of their first ranks
  for (size_t i = 0; i < by_rank.size(); ++i) {
    if (by_rank[i]->joined) continue;
    std::string mine = value(*by_rank[i]);
    const auto side = std::find_if(sides.begin(), sides.end(),
                                   [&](const auto& known) { return known.first == mine; });
    if (side == sides.end()) {
      sides.push_back({std::move(mine), {ranks[i]}});
    } else {
      side->second.push_back(ranks[i]);
    }
  }
  if (sides.size() <= 1) return Status::Ok();
  std::string text = "Mismatched " + what + " for tensor '" + by_rank[0]->name + "': ";
  for (size_t i = 0; i < std::min(sides.size(), kSidesNamed); ++i) {
    if (i > 0) text += ", ";
    text += Side(sides[i].second, sides[i].first);
  }
  if (sides.size() > kSidesNamed) {
    text += ", and " + std::to_string(sides.size() - kSidesNamed) + " more values on other ranks";
  }
  return Status::InvalidArgument(text + ".");
}

Status CheckGroups(std::span<const Request* const> by_rank, std::span<const int> ranks) {
  return CheckSame(by_rank, ranks, "groups", GroupText);
}

Status CheckCommon(std::span<const Request* const> by_rank, std::span<const int> ranks,
                   const std::string& collective) {
  HORON_TRY(CheckSame(by_rank, ranks, "data types",
                      [](const Request& r) { return std::string(NameOf(r.dtype)); }));
  HORON_TRY(
      CheckSame(by_rank, ranks, collective + " CPU/GPU device selection", [](const Request& r) {
        // Which GPU of its node a rank uses is its own business.
        return std::string(r.device.kind == DeviceKind::kHost ? "CPU" : "GPU");
      }));
  HORON_TRY(CheckSame(by_rank, ranks, "prescale and/or postscale factors", [](const Request& r) {
    return "(" + Exact(r.prescale) + ", " + Exact(r.postscale) + ")";
  }));
  HORON_TRY(CheckGroups(by_rank, ranks));
  return CheckSame(by_rank, ranks, "rounds",
                   [](const Request& r) { return "round " + std::to_string(r.round); });
}

Status CheckShapes(std::span<const Request* const> by_rank, std::span<const int> ranks,
                   const std::string& collective) {
  return CheckSame(by_rank, ranks, collective + " tensor shapes",
                   [](const Request& r) { return "shape " + ToString(r.shape); });
}

Status CheckRows(std::span<const Request* const> by_rank, std::span<const int> ranks,
                 const std::string& collective) {
  for (size_t i = 0; i < by_rank.size(); ++i) {
    if (!by_rank[i]->shape.empty() || by_rank[i]->joined) continue;
    return Status::InvalidArgument("Mismatched " + collective + " tensor shapes for tensor '" +
                                   by_rank[0]->name + "': rank [" + std::to_string(ranks[i]) +
                                   "] has a scalar, but the tensor needs a first dimension.");
  }
  return CheckSame(by_rank, ranks, collective + " tensor shapes", [](const Request& r) {
    std::string text = "shape [*";
    for (size_t i = 1; i < r.shape.size(); ++i) text += ", " + std::to_string(r.shape[i]);
    return text + "]";
  });
}

Status CheckFloating(const Request& request) {
  if (IsFloat(request.dtype)) return Status::Ok();
  return Status::InvalidArgument("Op '" + request.op + "' needs a floating data type; tensor '" +
                                 request.name + "' is " + std::string(NameOf(request.dtype)) + ".");
}

Status CheckFloatingAlike(std::span<const Request* const> by_rank, std::span<const int> ranks) {
  HORON_TRY(CheckCommon(by_rank, ranks));
  HORON_TRY(CheckShapes(by_rank, ranks));
  return CheckFloating(*by_rank[0]);
}

Status CheckUnscaled(const Request& request) {
  if (request.prescale == 1.0 && request.postscale == 1.0) return Status::Ok();
  return Status::InvalidArgument("Op '" + request.op + "' does not scale; tensor '" + request.name +
                                 "' asks for prescale " + Exact(request.prescale) +
                                 " and postscale " + Exact(request.postscale) + ".");
}

}  // namespace horon
