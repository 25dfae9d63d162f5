// Awaited: the works that one thread waits for as one, and which of them it is known to wait for.
// The waiting thread only.
#pragma once

#include <optional>
#include <span>

#include "runtime/core/activity.h"
#include "runtime/core/work.h"

namespace horon {

class Awaited {
 public:
  // At least one.
  explicit Awaited(std::span<Work* const> works) : works_(works) {}

  std::span<Work* const> all() const { return works_; }
  // Whether all are done.
  bool done() {
    while (next_ < works_.size() && works_[next_]->done()) ++next_;
    return next_ == works_.size();
  }
  // The first that was not done when last looked at; the last one if all were.
  Work& first() const { return next_ < works_.size() ? *works_[next_] : *works_.back(); }

  // From here on, and over all pieces of the wait, this thread counts as blocked on the first that
  // is not done, on its first tensor that is pending; false if it does so already.
  bool Mark(Callers& callers) {
    const SharedRegistration& what = first().first();
    if (marked_ == &first() && marked_on_ == what.get()) return false;
    marked_ = &first();
    marked_on_ = what.get();
    waiting_.reset();
    if (what) waiting_.emplace(callers, Callers::Key(what, &what->key));
    return what != nullptr;  // else an order to the windows' engine
  }
  Callers::Waiting* mark() { return waiting_ ? &*waiting_ : nullptr; }

 private:
  std::span<Work* const> works_;
  size_t next_ = 0;
  const Work* marked_ = nullptr;
  const Registration* marked_on_ = nullptr;
  std::optional<Callers::Waiting> waiting_;
};

}  // namespace horon
