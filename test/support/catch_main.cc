// main() of the test programs that have none of their own.
#include "test/support/catch_runner.h"

int main(int argc, char** argv) { return horon::test::RunCatch({argv, static_cast<size_t>(argc)}); }
