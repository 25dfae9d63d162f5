// Which context a thread has meanwhile, and which afterwards.
#include "runtime/device/entered_context.h"

#include <vector>

#include "test/support/catch.h"

namespace horon {
namespace {

// A driver of one thread.
void* of_thread = nullptr;
std::vector<void*> made_current;
const ContextCalls kOneThread = {[](void** context) {
                                   *context = of_thread;
                                   return 0;
                                 },
                                 [](void* context) {
                                   of_thread = context;
                                   made_current.push_back(context);
                                   return 0;
                                 }};

// In what order contexts become current, on a thread that has `before`.
std::vector<void*> Enter(void* before, void* wanted) {
  of_thread = before;
  made_current.clear();
  {
    const EnteredContext entered(kOneThread, wanted);
    REQUIRE(of_thread == wanted);
  }
  REQUIRE(of_thread == before);
  return made_current;
}

TEST_CASE("a thread has the GPU's context meanwhile, and its own or none afterwards") {
  int one = 0, other = 0;
  REQUIRE(Enter(nullptr, &one) == std::vector<void*>{&one, nullptr});
  REQUIRE(Enter(&other, &one) == std::vector<void*>{&one, &other});
  REQUIRE(Enter(&one, &one).empty());
  {
    const EnteredContext outer(kOneThread, &other);
    REQUIRE(Enter(&other, &one).size() == 2);
    REQUIRE(Enter(&other, &other).empty());
  }
}

TEST_CASE("a context that does not become current is not left either") {
  static int calls;
  calls = 0;
  const ContextCalls lost = {[](void** context) {
                               *context = nullptr;
                               return 0;
                             },
                             [](void*) { return ++calls; }};
  int wanted = 0;
  { const EnteredContext entered(lost, &wanted); }
  REQUIRE(calls == 1);
}

}  // namespace
}  // namespace horon
