// Descriptor: a file descriptor that closes itself, whatever road a function leaves by.
//
// For sockets that change hands while ranks meet (rendezvous.h) and then belong to the watch
// (watch.h). On any thread; one owner at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace horon {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }  // -1: none

 private:
  int fd_;
};

}  // namespace horon
