// Task: an operation written top to bottom that stops wherever it would have to wait.
//
// Collectives, ops and the executor's buckets are coroutines. `co_await` on a Waitable (a transfer,
// a counter of a peer) suspends the whole chain of tasks until `Ready()`; `co_await` on another
// Task runs it as a sub-step and gives its Status. Nothing here blocks, and nothing is scheduled:
// whoever owns a RootTask calls Advance(), which runs until the next wait. All on the holder of the
// baton.
//
// Destroying a RootTask destroys every suspended frame in it; transfers that live in those frames
// cancel themselves, so no transport touches their memory afterwards.
//
// Control always returns to Advance() between steps (a trampoline, not symmetric transfer), because
// compilers guarantee tail calls only when they optimise: a loop of 10,000 ready steps must not
// grow the stack in a sanitizer build. docs/decisions/0001-coroutines.md has the reasons and gcc
// 12's traps.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "runtime/base/recycler.h"
#include "runtime/base/status.h"

namespace horon {

// Something that becomes ready by itself, asked again whenever the runtime made progress.
class Waitable {
 public:
  virtual ~Waitable() = default;
  virtual bool Ready() = 0;
};

class [[nodiscard]] Task {
 public:
  struct Root {
    std::coroutine_handle<> leaf;  // what to resume next
    Waitable* waiting = nullptr;   // null: runnable
  };

  struct promise_type : Recycled {  // so the frame is recycled
    Root* root = nullptr;
    std::coroutine_handle<> continuation;  // null for the outermost task
    Status status;

    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        Root* root = self.promise().root;
        root->leaf = self.promise().continuation;
        root->waiting = nullptr;
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_value(Status s) { status = std::move(s); }
    void unhandled_exception() {
      try {
        throw;
      } catch (const std::exception& e) {
        status = Status::Internal(std::string("an exception inside an operation: ") + e.what());
      }
    }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // co_await task -> Status
  bool await_ready() const noexcept { return false; }
  void await_suspend(Handle parent) noexcept {
    handle_.promise().root = parent.promise().root;
    handle_.promise().continuation = parent;
    parent.promise().root->leaf = handle_;
    parent.promise().root->waiting = nullptr;
  }
  Status await_resume() { return std::move(handle_.promise().status); }

 private:
  friend class RootTask;
  Handle handle_;
};

// co_await Until(waitable)
class Until {
 public:
  explicit Until(Waitable& waitable) : waitable_(waitable) {}
  bool await_ready() { return waitable_.Ready(); }
  void await_suspend(Task::Handle self) noexcept {
    self.promise().root->leaf = self;
    self.promise().root->waiting = &waitable_;
  }
  void await_resume() noexcept {}

 private:
  Waitable& waitable_;
};

// Owns an outermost Task and runs it piece by piece. Not movable: frames point at its Root.
class RootTask : public Recycled {
 public:
  explicit RootTask(Task task) : task_(std::move(task)) {
    task_.handle_.promise().root = &root_;
    root_.leaf = task_.handle_;
  }
  RootTask(const RootTask&) = delete;
  RootTask& operator=(const RootTask&) = delete;

  // Runs until the next wait that is not ready. Returns whether anything ran.
  bool Advance() {
    bool ran = false;
    while (root_.leaf && (root_.waiting == nullptr || root_.waiting->Ready())) {
      root_.waiting = nullptr;
      ran = true;
      root_.leaf.resume();
    }
    return ran;
  }
  bool done() const { return !root_.leaf; }
  // Valid once done.
  const Status& status() const { return task_.handle_.promise().status; }

 private:
  Task::Root root_;
  Task task_;
};

}  // namespace horon

// co_return when a Status (of an awaited Task, say) is not ok.
#define HORON_CO_TRY(expr)                                \
  do {                                                    \
    ::horon::Status horon_co_status = (expr);             \
    if (!horon_co_status.ok()) co_return horon_co_status; \
  } while (false)
