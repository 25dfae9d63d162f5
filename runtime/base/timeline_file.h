// TimelineFile: the one file that the timelines of all ranks go to, a JSON array in Chrome's trace
// format.
//
// Every rank appends to it, under a lock of the file, in pieces that end with the array's bracket:
// whoever reads it finds whole JSON. A piece that a killed rank left torn is cut away by whoever
// opens the file or appends next, or by who started the ranks (launcher/timeline_end.py). Ranks on
// hosts that share no file system get a file each, of the same name. The writer thread of a
// timeline.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/own_descriptors.h"
#include "runtime/base/status.h"

namespace horon {

class TimelineFile {
 public:
  // A new one, replacing what is there. `id` tells it from an older one of this name.
  static Result<TimelineFile> Create(const std::string& path, const std::string& id);
  // The one that another rank has created; a new one if that is not to be seen here.
  static Result<TimelineFile> Open(const std::string& path, const std::string& id);
  ~TimelineFile();
  TimelineFile(TimelineFile&& other) noexcept;
  TimelineFile& operator=(TimelineFile&&) = delete;

  // One or more events: JSON objects without a line break in them, a line each, with ",\n" between
  // them.
  Status Append(std::string_view events);

 private:
  explicit TimelineFile(int fd, std::string path) : fd_(Own(fd)), path_(std::move(path)) {}
  class Locked;
  Status Begin(const std::string& id);
  Result<int64_t> End();  // where the closing bracket's line begins
  Status Failed(const std::string& what) const;

  int fd_;
  std::string path_;
};

}  // namespace horon
