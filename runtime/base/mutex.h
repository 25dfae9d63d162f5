// Mutex and MutexLock: std::mutex with the annotations that clang's -Wthread-safety checks, so that
// "guarded by" is a claim the compiler proves. Other compilers see plain locks.
#pragma once

#include <mutex>

#if defined(__clang__)
#define HORON_ANNOTATE(x) __attribute__((x))
#else
#define HORON_ANNOTATE(x)
#endif
#define HORON_GUARDED_BY(mutex) HORON_ANNOTATE(guarded_by(mutex))
#define HORON_REQUIRES(mutex) HORON_ANNOTATE(requires_capability(mutex))

namespace horon {

class HORON_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() HORON_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() HORON_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class HORON_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HORON_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() HORON_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace horon
