#include "runtime/base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/base/descriptor.h"
#include "runtime/base/system_error.h"
#include "runtime/base/write_all.h"

namespace horon {

Status ReplaceFile(const std::string& variable, const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const Descriptor file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() >= 0 && WriteAll(file.get(), text, 0) && rename(fresh.c_str(), path.c_str()) == 0)
    return Status::Ok();
  const int why = errno;
  if (file.get() >= 0) unlink(fresh.c_str());
  return Status::InvalidArgument(variable + ": " + path +
                                 " cannot be written: " + SystemError(why));
}

}  // namespace horon
