// Registry: the tensors that a rank has submitted, by name. What is the same from call to call (the
// request, its key, its op) is worked out once and kept in a Registration; entries on the road only
// point to it.
//
// A name means one Registration at a time; another request under the same name replaces it, unless
// it is pending. Names that were not used for long are forgotten, and those of a process set with
// it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/base/mutex.h"
#include "runtime/op/op.h"

namespace horon {

class Registration {
 public:
  Registration(Request request, Op* op);

  const Request request;
  const std::string key;     // KeyOf(process set, name)
  const uint64_t tensor_id;  // TensorId(process set, name)
  const int64_t count;       // elements of the input
  const int64_t bytes;       // theirs
  Op* const op;              // of this runtime's table; null for changes of process sets

  // Any thread. Whether this call made it pending; it is not, if it is already, or was replaced.
  bool Claim() {
    if (!Change(State::kIdle, State::kPending)) return false;
    Count(1);
    return true;
  }
  void Release() { state_.store(State::kIdle, std::memory_order_release); }
  // It was claimed for a call that is refused.
  void Unclaim() {
    Count(-1);
    Release();
  }
  // From then on it cannot be claimed. False if it is pending.
  bool Replace() { return Change(State::kIdle, State::kReplaced) || replaced(); }
  bool replaced() const { return state_.load(std::memory_order_acquire) == State::kReplaced; }
  bool pending() const { return state_.load(std::memory_order_acquire) == State::kPending; }
  // How often this name was submitted here, with what it meant before.
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  void Follow(const Registration& replaced) {
    calls_.store(replaced.calls(), std::memory_order_relaxed);
  }

  // Holder of the baton.
  uint64_t cache_id = 0;  // under which exactly this request is remembered (response_cache.h)
  int slot = -1;          // where its entry waits in the negotiator
  uint64_t runs = 0;      // how often it has started: the number of its next step
  // Of the locked schedule, if it is in it; any thread may read it.
  std::atomic<int> batch{-1};

 private:
  enum class State { kIdle, kPending, kReplaced };
  bool Change(State from, State to) {
    return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  // Only who has claimed it counts.
  void Count(int64_t by) { calls_.store(calls() + by, std::memory_order_relaxed); }
  std::atomic<State> state_{State::kIdle};
  std::atomic<int64_t> calls_{0};
};

using SharedRegistration = std::shared_ptr<Registration>;

// Any thread.
class Registry {
 public:
  // `most`: names of a generation; two are kept.
  explicit Registry(OpTable& ops, size_t most = 32768) : ops_(&ops), most_(most) {}

  // Null if the name is not known.
  SharedRegistration Find(int32_t process_set, std::string_view name);
  // The one known, if it is of an equal request; else a new one, which replaces it.
  // kInvalidArgument for an unknown op, what the op refuses by itself, or while another request of
  // this name is pending.
  Result<SharedRegistration> Of(Request request);
  // A new one that no name leads to. kInvalidArgument for an unknown op.
  Result<SharedRegistration> Unlisted(Request request);
  // Declares the names of a process set replaced, but those that are pending, and forgets them: its
  // number never comes again.
  void ForgetSet(int32_t process_set);
  // Declares all of them replaced; from then on Of fails with `status`. When nothing is pending any
  // more.
  void Close(Status status);

 private:
  struct Name {  // the text is the registration's
    int32_t process_set;
    std::string_view text;
    bool operator==(const Name&) const = default;
  };
  struct Hash {
    size_t operator()(const Name& name) const {
      return std::hash<std::string_view>()(name.text) * 31 + static_cast<size_t>(name.process_set);
    }
  };
  using Names = std::unordered_map<Name, SharedRegistration, Hash>;

  SharedRegistration Look(const Name& name) HORON_REQUIRES(mutex_);
  void Insert(SharedRegistration what) HORON_REQUIRES(mutex_);

  OpTable* ops_;
  size_t most_;
  Mutex mutex_;
  Names young_ HORON_GUARDED_BY(mutex_), old_ HORON_GUARDED_BY(mutex_);
  Status closed_ HORON_GUARDED_BY(mutex_);
};

// That a name is taken, as a sentence.
Status StillPending(const Request& request);

}  // namespace horon
