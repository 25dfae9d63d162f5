#include "runtime/peer/window_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "runtime/base/system_error.h"

namespace horon {
namespace {

constexpr int64_t kPage = 4096;  // before the slots; begins with the token

int64_t SizeFor(int slots, int64_t bytes) { return kPage + slots * Slot::BytesFor(bytes); }

std::byte* MapShared(int fd, int64_t size) {
  void* base = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, static_cast<size_t>(size), MADV_DONTFORK);
  return static_cast<std::byte*>(base);
}

Status NoMemory(int64_t size) {
  return Status::Unavailable("the " + std::to_string(size) +
                             " bytes of a window could not be had: " + SystemError(errno));
}

int64_t NewToken() {
  std::random_device random;
  return static_cast<int64_t>((static_cast<uint64_t>(random()) << 32) | random());
}

int64_t TokenAt(const std::byte* base) {
  int64_t token;
  std::memcpy(&token, base, sizeof(token));
  return token;
}

}  // namespace

Result<std::shared_ptr<WindowMemory>> WindowMemory::Make(int slots, int64_t bytes) {
  const int64_t size = SizeFor(slots, bytes);
  const int fd = memfd_create("horon_window", MFD_CLOEXEC);
  if (fd < 0) return NoMemory(size);
  std::byte* base = ftruncate(fd, size) == 0 ? MapShared(fd, size) : nullptr;
  if (base == nullptr) {
    const Status status = NoMemory(size);
    close(fd);
    return status;
  }
  const int64_t token = NewToken();
  std::memcpy(base, &token, sizeof(token));
  std::shared_ptr<WindowMemory> made(new WindowMemory(base, size, fd, bytes));
  for (int i = 0; i < slots; ++i) made->slot(i).Make();
  return made;
}

std::shared_ptr<WindowMemory> WindowMemory::Map(const Address& address, int slots, int64_t bytes) {
  if (address.pid == getpid()) {
    auto* place = reinterpret_cast<std::byte*>(address.place);
    return std::shared_ptr<WindowMemory>(new WindowMemory(place, 0, -1, bytes));
  }
  const std::string path =
      "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat facts{};
  const int64_t size = SizeFor(slots, bytes);
  const bool fits = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size == size;
  std::byte* base = fits ? MapShared(fd, size) : nullptr;
  close(fd);
  if (base == nullptr) return nullptr;
  std::shared_ptr<WindowMemory> mapped(new WindowMemory(base, size, -1, bytes));
  return TokenAt(base) == address.token ? mapped : nullptr;
}

WindowMemory::~WindowMemory() {
  if (size_ > 0) munmap(base_, static_cast<size_t>(size_));
  if (fd_ >= 0) close(fd_);
}

WindowMemory::Address WindowMemory::address() const {
  return {getpid(), fd_, TokenAt(base_), reinterpret_cast<int64_t>(base_)};
}

Slot WindowMemory::slot(int i) const {
  return {base_ + kPage + i * Slot::BytesFor(bytes_), bytes_};
}

}  // namespace horon
