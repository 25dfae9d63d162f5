#include "runtime/base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <unordered_map>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/own_descriptors.h"
#include "runtime/base/system_error.h"

namespace horon {
namespace {

int64_t NewToken() {
  std::random_device random;
  return static_cast<int64_t>((static_cast<uint64_t>(random()) << 32) | random());
}

int64_t TokenAt(const std::byte* base) {
  int64_t token;
  std::memcpy(&token, base, sizeof(token));
  return token;
}

// What this process owns, for its other ranks: a pid may be that of another namespace, a token is
// nobody else's.
struct Owned {
  Mutex mutex;
  std::unordered_map<int64_t, std::weak_ptr<SharedMemory>> by_token HORON_GUARDED_BY(mutex);
};
Owned& Mine() {
  static Owned* owned = new Owned;  // leaked: user threads may still drop memory while statics die
  return *owned;
}

std::shared_ptr<SharedMemory> Made(int64_t token) {
  const MutexLock lock(Mine().mutex);
  const auto found = Mine().by_token.find(token);
  return found == Mine().by_token.end() ? nullptr : found->second.lock();
}

}  // namespace

int64_t TouchedBytes(int fd) {
  constexpr int64_t kBlock = 512;  // of st_blocks
  struct stat facts{};
  return fd >= 0 && fstat(fd, &facts) == 0 ? facts.st_blocks * kBlock : 0;
}

int64_t SharedMemory::OwnedBytes() {
  std::vector<std::shared_ptr<SharedMemory>> owned;  // the last to drop one takes the mutex
  {
    const MutexLock lock(Mine().mutex);
    for (const auto& [token, memory] : Mine().by_token) owned.push_back(memory.lock());
  }
  int64_t bytes = 0;
  for (const auto& memory : owned) bytes += memory ? TouchedBytes(memory->fd_) : 0;
  return bytes;
}

std::byte* SharedMemory::MapFile(int fd, int64_t bytes) {
  void* base =
      mmap(nullptr, static_cast<size_t>(kPage + bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::Make(int64_t bytes, const std::string& what,
                                                         bool inherited) {
  const int fd = memfd_create(("horon " + what).c_str(), MFD_CLOEXEC);
  std::byte* base = nullptr;
  if (fd >= 0 && ftruncate(fd, kPage + bytes) == 0) base = MapFile(fd, bytes);
  if (base == nullptr) {
    const Status status = Status::Unavailable("the " + std::to_string(bytes) + " bytes of a " +
                                              what + " could not be had: " + SystemError(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  // Many kernels grant them to private memory only; then nothing changes.
  madvise(base, static_cast<size_t>(kPage + bytes), MADV_HUGEPAGE);
  if (!inherited) madvise(base, static_cast<size_t>(kPage + bytes), MADV_DONTFORK);
  Own(fd);
  const int64_t token = NewToken();
  std::memcpy(base, &token, sizeof(token));
  std::shared_ptr<SharedMemory> made(new SharedMemory(base, fd, bytes));
  const MutexLock lock(Mine().mutex);
  Mine().by_token[token] = made;
  return made;
}

std::shared_ptr<SharedMemory> SharedMemory::Map(const Address& address, int64_t bytes) {
  if (auto own = Made(address.token); own != nullptr) return own->bytes() == bytes ? own : nullptr;
  const std::string path =
      "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat facts{};
  const bool fits =
      fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size == kPage + bytes;
  std::byte* base = fits ? MapFile(fd, bytes) : nullptr;
  close(fd);
  if (base == nullptr) return nullptr;
  madvise(base, static_cast<size_t>(kPage + bytes), MADV_DONTFORK);
  std::shared_ptr<SharedMemory> mapped(new SharedMemory(base, -1, bytes));
  return TokenAt(base) == address.token ? mapped : nullptr;
}

SharedMemory::~SharedMemory() {
  if (fd_ >= 0) {
    const MutexLock lock(Mine().mutex);
    Mine().by_token.erase(TokenAt(base_));
    CloseOwn(fd_);
  }
  munmap(base_, static_cast<size_t>(kPage + bytes_));
}

SharedMemory::Address SharedMemory::address() const { return {getpid(), fd_, TokenAt(base_)}; }

}  // namespace horon
