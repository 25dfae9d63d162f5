#include "runtime/op/request.h"

namespace horon {

uint64_t TensorId(int32_t process_set, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : KeyOf(process_set, name)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace horon
