// Foresight over memory that is gone: it may only ever prefetch.
#include "runtime/base/foresight.h"

#include <sys/mman.h>

#include <random>

#include "test/support/catch.h"

namespace horon {
namespace {

// Some pages that cannot be touched.
class Forbidden {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;
  Forbidden()
      : base_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(base_ != MAP_FAILED);
  }
  ~Forbidden() { munmap(base_, kBytes); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  const void* at(size_t offset) const { return static_cast<const char*>(base_) + offset % kBytes; }

 private:
  void* base_;
};

TEST_CASE("foresight touches nothing, in whatever order things come, and however many") {
  const Forbidden memory;
  std::mt19937 random(1);
  for (const size_t count : {1u, 2u, 3u, 1000u, 4095u, 4096u, 4097u, 10'000u}) {
    Foresight<1, 64, 200> foresight;
    for (int pass = 0; pass < 3; ++pass) {
      for (size_t i = 0; i < count; ++i) {
        foresight.Come({memory.at(8 * i), memory.at(random()), nullptr});
      }
    }
    for (size_t i = 0; i < count; ++i) {  // another order, and none
      foresight.Come({memory.at(8 * (random() % count)), nullptr, memory.at(random())});
    }
  }
}

}  // namespace
}  // namespace horon
