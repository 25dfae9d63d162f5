#include "runtime/base/timeline_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/look.h"
#include "runtime/base/system_error.h"
#include "runtime/base/write_all.h"

namespace horon {
namespace {

constexpr std::string_view kClose = "\n]\n";
// More than a piece that can be torn.
constexpr int64_t kTail = 256 << 10;
constexpr std::chrono::milliseconds kLockWait{5000}, kLongestLockWait{30000}, kLockLook{2};

std::string FirstLines(const std::string& id) {
  return "[\n{\"name\":\"horon_timeline\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"id\":\"" +
         id + "\"}}";
}

std::string ReadAt(int fd, int64_t at, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), at);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, n)));
  return text;
}

}  // namespace

// While it lives, and was taken, no other rank writes.
class TimelineFile::Locked {
 public:
  explicit Locked(const TimelineFile& file) : fd_(file.fd_) {}
  ~Locked() {
    if (taken_) flock(fd_, LOCK_UN);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  // A rank that is stopped while it writes keeps the lock. The kernel has no wait with a limit for
  // one, so it is asked again and again.
  Status Take(const std::string& path) {
    const auto begun = std::chrono::steady_clock::now();
    auto grown = begun;  // when somebody wrote last: who has to wait for many is not held up
    off_t size = 0;
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      HORON_TRY(GoOn());
      const auto now = std::chrono::steady_clock::now();
      struct stat is{};
      if (fstat(fd_, &is) == 0 && std::exchange(size, is.st_size) != is.st_size) grown = now;
      if (now - grown > kLockWait || now - begun > kLongestLockWait) {
        return Status::Unavailable("the timeline " + path +
                                   " cannot be written: another process has kept its lock for 5 "
                                   "s; it is stopped, or waits for its disk");
      }
      std::this_thread::sleep_for(kLockLook);
    }
    taken_ = true;  // or the file system has no locks
    return Status::Ok();
  }

 private:
  int fd_;
  bool taken_ = false;
};

TimelineFile::TimelineFile(TimelineFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

TimelineFile::~TimelineFile() { CloseOwn(fd_); }

Status TimelineFile::Failed(const std::string& what) const {
  return Status::InvalidArgument("the timeline " + path_ + " cannot be " + what + ": " +
                                 SystemError(errno));
}

Result<TimelineFile> TimelineFile::Create(const std::string& path, const std::string& id) {
  TimelineFile file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
  if (file.fd_ < 0) return file.Failed("opened");
  Locked locked(file);
  HORON_TRY(locked.Take(path));
  HORON_TRY(file.Begin(id));
  return file;
}

Result<TimelineFile> TimelineFile::Open(const std::string& path, const std::string& id) {
  TimelineFile file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
  if (file.fd_ < 0) return file.Failed("opened");
  Locked locked(file);
  HORON_TRY(locked.Take(path));
  const std::string first = FirstLines(id);
  if (ReadAt(file.fd_, 0, static_cast<int64_t>(first.size())) != first) HORON_TRY(file.Begin(id));
  return file;
}

Status TimelineFile::Begin(const std::string& id) {
  if (ftruncate(fd_, 0) != 0) return Failed("emptied");
  const std::string text = FirstLines(id) + std::string(kClose);
  return WriteAll(fd_, text, 0) ? Status::Ok() : Failed("written");
}

// Whole lines end with a brace, or a brace and a comma; only a torn one does not.
Result<int64_t> TimelineFile::End() {
  struct stat now{};
  if (fstat(fd_, &now) != 0) return Failed("looked at");
  const int64_t size = now.st_size, from = std::max<int64_t>(0, size - kTail);
  const std::string tail = ReadAt(fd_, from, size - from);
  if (std::string_view(tail).ends_with(kClose)) return size - static_cast<int64_t>(kClose.size());
  if (std::string_view(tail).ends_with("},]\n")) return size - 3;  // torn after one byte
  const size_t line = tail.rfind("}\n"), middle = tail.rfind("},\n");
  const size_t last = line == std::string::npos     ? middle
                      : middle == std::string::npos ? line
                                                    : std::max(line, middle);
  if (last == std::string::npos)
    return Status::InvalidArgument("the timeline " + path_ + " was changed by another program");
  return from + static_cast<int64_t>(last) + 1;
}

Status TimelineFile::Append(std::string_view events) {
  Locked locked(*this);
  HORON_TRY(locked.Take(path_));
  HORON_ASSIGN(const int64_t end, End());
  const std::string text = ",\n" + std::string(events) + std::string(kClose);
  if (!WriteAll(fd_, text, end)) return Failed("written");
  // A torn piece may have been longer.
  if (ftruncate(fd_, end + static_cast<int64_t>(text.size())) != 0) return Failed("cut");
  return Status::Ok();
}

}  // namespace horon
