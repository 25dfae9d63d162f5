// EnteredContext: a context of CUDA's driver as a thread's current one, and afterwards the one that
// was there before, or none. It knows no CUDA, so that tests run it over functions of their own.
//
// Not cudaSetDevice there and back: a thread that has no context yet is said to be on GPU 0, and to
// "go back" there would begin one on it, of some hundred MiB, in every rank of the node.
#pragma once

namespace horon {

// The driver's functions. A thread's context is null where it has none.
struct ContextCalls {
  int (*GetCurrent)(void** context) = nullptr;  // cuCtxGetCurrent
  int (*SetCurrent)(void* context) = nullptr;   // cuCtxSetCurrent
};

class EnteredContext {
 public:
  EnteredContext(const ContextCalls& driver, void* wanted) : driver_(driver) {
    changed_ = driver.GetCurrent(&before_) == 0 && before_ != wanted &&
               driver.SetCurrent(wanted) == 0;
  }
  ~EnteredContext() {
    if (changed_) driver_.SetCurrent(before_);
  }
  EnteredContext(const EnteredContext&) = delete;
  EnteredContext& operator=(const EnteredContext&) = delete;

 private:
  const ContextCalls& driver_;
  void* before_ = nullptr;
  bool changed_ = false;
};

}  // namespace horon
