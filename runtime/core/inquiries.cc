#include "runtime/core/inquiries.h"

#include <utility>

namespace horon {
namespace {

constexpr size_t kLongest = 1000;

}  // namespace

void Inquiries::Ask() {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(open_, true)) open_since_ = Clock::now();
  }
  asked_.notify_one();
}

bool Inquiries::Await() {
  MutexLock lock(mutex_);
  listens_ = true;
  while (!open_ && !closed_) asked_.wait(mutex_);
  return !closed_;
}

void Inquiries::Tell(std::string doing) {
  if (doing.size() > kLongest) doing.resize(kLongest);
  MutexLock lock(mutex_);
  open_ = false;
  doing_ = std::move(doing);
}

void Inquiries::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  asked_.notify_all();
}

std::string Inquiries::Answer() const {
  MutexLock lock(mutex_);
  if (!listens_) return "";
  if (open_ && Clock::now() - open_since_ >= kPatience)
    return "in native code that holds the interpreter's lock, so it cannot say where";
  return doing_;
}

}  // namespace horon
