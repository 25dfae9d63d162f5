// TensorStates: what ops remember of tensors from call to call, for one process set. Of more than
// kMost the one unused for longest is dropped: names that never come again must not fill the
// memory. Members of the set call for the same tensors in the same order, so they forget alike.
// Holder of the baton only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "runtime/op/op.h"

namespace horon {

class TensorStates {
 public:
  static constexpr size_t kMost = 65536;

  // Null at first. The reference holds until the next call.
  std::unique_ptr<TensorState>& Of(const std::string& op, const std::string& key) {
    const auto [known, fresh] = places_.try_emplace(op + "\n" + key);
    if (fresh) {
      known->second = lines_.insert(lines_.end(), {known->first, nullptr});
    } else {
      lines_.splice(lines_.end(), lines_, known->second);
    }
    if (lines_.size() > kMost) {
      places_.erase(lines_.front().name);
      lines_.pop_front();
    }
    return lines_.back().state;
  }
  size_t size() const { return lines_.size(); }

 private:
  struct Line {
    std::string name;
    std::unique_ptr<TensorState> state;
  };
  std::list<Line> lines_;  // the one unused for longest first
  std::unordered_map<std::string, std::list<Line>::iterator> places_;
};

}  // namespace horon
