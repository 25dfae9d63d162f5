// The only translation unit that compiles Catch2's runner (version 2).
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "test/support/catch_runner.h"

#include "test/support/catch.h"

namespace horon::test {

int RunCatch(std::span<const char* const> arguments) {
  return Catch::Session().run(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace horon::test
