// SharedMemory: a memfd of this process that other processes of its node map as well.
//
// The owner makes it; others map it by what its Address says, which a token proves; other ranks of
// the same process share the owner's. A process that cannot (another host, another pid namespace)
// gets null and must do without. Unlike the node's segment it can be made at any time. Any thread
// of the process that made or mapped it: a forked child must not drop it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/status.h"

namespace horon {

// Of a memfd: bytes of the pages that somebody has touched. 0 for -1.
int64_t TouchedBytes(int fd);

class SharedMemory {
 public:
  struct Address {  // travels as three integers
    int64_t pid = 0, fd = -1;
    int64_t token = 0;
  };

  // `bytes` of zeros. `what` says in errors what it is for; it also names the file. `inherited`:
  // whether forked children have it, too.
  static Result<std::shared_ptr<SharedMemory>> Make(int64_t bytes, const std::string& what,
                                                    bool inherited = false);
  // The owner's memory of so many bytes; null when this process cannot have it.
  static std::shared_ptr<SharedMemory> Map(const Address& address, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Touched bytes of all that this process owns. Any thread.
  static int64_t OwnedBytes();

  Address address() const;
  // Begins at a page.
  std::byte* data() const { return base_ + kPage; }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kPage = 4096;  // before the data; begins with the token

  SharedMemory(std::byte* base, int fd, int64_t bytes) : base_(base), fd_(fd), bytes_(bytes) {}
  static std::byte* MapFile(int fd, int64_t bytes);

  std::byte* base_;
  int fd_;  // -1: not the owner
  int64_t bytes_;
};

}  // namespace horon
