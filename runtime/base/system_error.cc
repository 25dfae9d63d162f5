#include "runtime/base/system_error.h"

#include <errno.h>

#include <cstring>

namespace horon {

std::string SystemError(int error) {
  const std::string sentence = std::strerror(error);
  if (error == EMFILE) return sentence + " (raise ulimit -n)";
  if (error == ENFILE) return sentence + " (raise the system's fs.file-max)";
  if (error == ENOMEM) return sentence + " (raise ulimit -v, or the container's memory)";
  if (error == EAGAIN) return sentence + " (raise ulimit -u or ulimit -l)";
  return sentence;
}

}  // namespace horon
