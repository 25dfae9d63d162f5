// NodeLetter: what watch threads of different nodes write to each other (inquest.h): a question
// after a tensor, and what a node knows of it; and one sentence of what all nodes know. A decoder
// trusts nothing.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/core/activity.h"

namespace horon {

// Who has submitted this tensor for the `calls`-th time, and who not?
struct Wanted {
  std::string key;  // "<process set>/<name>"; empty: nothing is asked
  int64_t calls = 0;

  bool operator==(const Wanted&) const = default;
};

// What is known of ranks, by rank.
struct NodeView {
  std::map<int32_t, std::optional<Activity>> ranks;  // none: it has submitted the tensor
  std::map<int32_t, std::string> notes;              // what else there is to say: half a sentence

  void Add(const NodeView& newer);
  bool operator==(const NodeView&) const = default;
};

struct NodeQuestion {
  uint64_t number = 0;  // of the asker's
  Wanted question;

  bool operator==(const NodeQuestion&) const = default;
};

struct NodeAnswer {
  uint64_t number = 0;
  NodeView view;

  bool operator==(const NodeAnswer&) const = default;
};

using NodeLetter = std::variant<NodeQuestion, NodeAnswer>;

// Fits into a letter (letters.h): of an answer only the first ranks say what they do, in short
// words; more than those no sentence names. A question whose name has no end may be longer.
std::vector<std::byte> Encode(NodeLetter letter);
// kInternal with what is wrong. `ranks` bounds rank numbers.
Result<NodeLetter> DecodeNodeLetter(std::span<const std::byte> bytes, int ranks);

// One line: who of `ranks` has submitted the tensor, who not and what those do, and of whom nothing
// is known, after the words `unknown`.
std::string Describe(const NodeView& known, const std::string& key, const std::vector<int>& ranks,
                     std::chrono::steady_clock::time_point since,
                     std::chrono::steady_clock::time_point now, const std::string& unknown);

}  // namespace horon
