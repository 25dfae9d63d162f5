#include "runtime/c_error.h"

namespace horon {

std::string& LastError() {
  static thread_local std::string sentence;
  return sentence;
}

int Fail(const Status& status) {
  if (!status.ok()) LastError() = status.message();
  return static_cast<int>(status.code());
}

}  // namespace horon
