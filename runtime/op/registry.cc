#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/base/nearest.h"
#include "runtime/op/op.h"

namespace horon {
namespace {

struct Registered {
  OpFactory make;
  OpUse use;
};

// Filled by the registrars before main; only read afterwards. In a function, because registrars in
// other files may run before this file's own statics exist.
std::map<std::string, Registered>& Ops() {
  static std::map<std::string, Registered> ops;
  return ops;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::vector<std::string_view> Views(const std::vector<std::string>& words) {
  return {words.begin(), words.end()};
}

std::string ThoseThatReduce() {
  std::vector<std::string> names;
  for (const auto& [name, op] : Ops()) {
    if (op.use == OpUse::kReduce) names.push_back(name);
  }
  return "; there are: " + Joined(names);
}

template <typename T>
std::optional<T> Parsed(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "late=wait|keep|fail", of what the op can.
Result<WhenLate> ReadLate(OpArguments& arguments, const std::vector<WhenLate>& choices) {
  const auto word_of = [](WhenLate late) -> std::string {
    return late == WhenLate::kWait ? "wait" : late == WhenLate::kKeep ? "keep" : "fail";
  };
  std::vector<std::string> words;
  for (const WhenLate late : choices) words.push_back(word_of(late));
  HORON_ASSIGN(const std::string chosen, arguments.Choice("late", words));
  const auto at = std::find(words.begin(), words.end(), chosen) - words.begin();
  return choices[static_cast<size_t>(at)];
}

}  // namespace

Result<OpArguments> OpArguments::Parse(const std::string& spec) {
  OpArguments arguments;
  arguments.spec_ = spec;
  const size_t colon = spec.find(':');
  arguments.name_ = spec.substr(0, colon);
  if (arguments.name_.empty()) return arguments.Wrong("the name is missing");
  size_t at = colon;
  while (at != std::string::npos) {
    const size_t comma = spec.find(',', at + 1);
    const std::string pair =
        spec.substr(at + 1, comma == std::string::npos ? comma : comma - at - 1);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      return arguments.Wrong("'" + pair + "' is not key=value");
    }
    const std::string key = pair.substr(0, equals);
    for (const Pair& other : arguments.pairs_) {
      if (other.key == key) return arguments.Wrong("'" + key + "' is given twice");
    }
    arguments.pairs_.push_back({key, pair.substr(equals + 1)});
    at = comma;
  }
  return arguments;
}

Status OpArguments::Wrong(const std::string& what) const {
  return Status::InvalidArgument("in op '" + spec_ + "': " + what);
}

Status OpArguments::Missing(const std::string& key) const {
  return Wrong("parameter '" + key + "' is missing");
}

std::optional<std::string> OpArguments::Text(const std::string& key) {
  known_.push_back(key);
  for (Pair& pair : pairs_) {
    if (pair.key != key) continue;
    pair.used = true;
    return pair.value;
  }
  return std::nullopt;
}

Result<int64_t> OpArguments::Integer(const std::string& key, std::optional<int64_t> fallback) {
  const auto text = Text(key);
  if (!text) return fallback ? Result<int64_t>(*fallback) : Missing(key);
  const auto value = Parsed<int64_t>(*text);
  return value ? Result<int64_t>(*value) : Wrong(key + "=" + *text + " is not a whole number");
}

Result<double> OpArguments::Number(const std::string& key, std::optional<double> fallback) {
  const auto text = Text(key);
  if (!text) return fallback ? Result<double>(*fallback) : Missing(key);
  const auto value = Parsed<double>(*text);
  return value ? Result<double>(*value) : Wrong(key + "=" + *text + " is not a number");
}

Result<std::string> OpArguments::Choice(const std::string& key,
                                        const std::vector<std::string>& choices) {
  const auto text = Text(key);
  if (!text) return choices.front();
  for (const std::string& choice : choices) {
    if (choice == *text) return choice;
  }
  return Wrong(key + "=" + *text + " is none of: " + Joined(choices));
}

Status OpArguments::Finish() const {
  for (const Pair& pair : pairs_) {
    if (pair.used) continue;
    return Wrong(Unknown(pair.key) +
                 (known_.empty() ? "; it has none" : "; it has: " + Joined(known_)));
  }
  return Status::Ok();
}

std::string OpArguments::Unknown(const std::string& key) const {
  return "unknown parameter '" + key + "'" + DidYouMean(key, Views(known_));
}

Status OpArguments::Explained(const Status& why) const {
  for (const Pair& pair : pairs_) {
    if (pair.used || Nearest(pair.key, Views(known_)).empty()) continue;
    const std::string begin = Wrong("").message(), rest = why.message();
    const size_t from = rest.starts_with(begin) ? begin.size() : 0;
    return Wrong(Unknown(pair.key) + "; " + rest.substr(from));
  }
  return why;
}

OpRegistrar::OpRegistrar(const char* name, OpFactory factory, OpUse use) {
  const bool added = Ops().emplace(name, Registered{std::move(factory), use}).second;
  HORON_CHECK(added, "two ops have one name");
}

std::vector<std::string> RegisteredOps() {
  std::vector<std::string> names;
  for (const auto& row : Ops()) names.push_back(row.first);
  return names;
}

Status CheckReduction(const std::string& spec) {
  OpTable table;
  HORON_TRY(table.Find(spec).status());
  HORON_ASSIGN(const OpArguments arguments, OpArguments::Parse(spec));
  if (Ops().at(arguments.name()).use == OpUse::kReduce) return Status::Ok();
  return arguments.Wrong("'" + arguments.name() +
                         "' is no reduction of whole tensors, and has a call of its own" +
                         ThoseThatReduce());
}

struct OpTable::Rows {
  Mutex mutex;  // guards the map; an op, once in it, stays where it is
  std::map<std::string, std::unique_ptr<Op>> by_spec HORON_GUARDED_BY(mutex);
};

OpTable::OpTable(OpDefaults defaults)
    : rows_(std::make_unique<Rows>()), defaults_(std::move(defaults)) {}
OpTable::~OpTable() = default;

std::string OpTable::Complete(const std::string& spec) const {
  const size_t colon = spec.find(':');
  const auto of_op = defaults_.find(spec.substr(0, colon));
  if (of_op == defaults_.end()) return spec;
  std::string complete = spec;
  for (const auto& [key, value] : of_op->second) {
    const std::string given =
        "," + spec.substr(colon == std::string::npos ? spec.size() : colon + 1);
    if (given.find("," + key + "=") != std::string::npos) continue;
    complete += (complete.find(':') == std::string::npos ? ":" : ",") + key + "=" + value;
  }
  return complete;
}

Result<Op*> OpTable::Find(const std::string& spec) {
  MutexLock lock(rows_->mutex);
  const auto known = rows_->by_spec.find(spec);
  if (known != rows_->by_spec.end()) return known->second.get();
  HORON_ASSIGN(OpArguments arguments, OpArguments::Parse(spec));
  const auto registered = Ops().find(arguments.name());
  if (registered == Ops().end()) {
    return arguments.Wrong("unknown name '" + arguments.name() + "'" +
                           DidYouMean(arguments.name(), Views(RegisteredOps())) +
                           ThoseThatReduce());
  }
  Result<std::unique_ptr<Op>> made = registered->second.make(arguments);
  if (!made.ok()) return arguments.Explained(made.status());
  HORON_ASSIGN(std::unique_ptr<Op> op, std::move(made));
  HORON_ASSIGN(op->when_late_, ReadLate(arguments, op->late_choices()));
  HORON_TRY(arguments.Finish());
  return rows_->by_spec.emplace(spec, std::move(op)).first->second.get();
}

}  // namespace horon
