// Descriptor: a file descriptor that closes itself, whatever road a function leaves by, and in
// forked children.
//
// For sockets that change hands while ranks meet (rendezvous.h) and then belong to the watch
// (watch.h). On any thread; one owner at a time.
#pragma once

#include <utility>

#include "runtime/base/own_descriptors.h"

namespace horon {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(Own(fd)) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { CloseOwn(fd_); }

  int get() const { return fd_; }  // -1: none

 private:
  int fd_;
};

}  // namespace horon
