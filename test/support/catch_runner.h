// Runs the tests of a program: what main() does, for programs that have a main() of their own.
#pragma once

#include <span>

namespace horon::test {

// `arguments`: those of main(). The exit code: 0 if no test failed.
int RunCatch(std::span<const char* const> arguments);

}  // namespace horon::test
