// HORON_CHECK: a broken invariant of Horon's own. Prints where and why, then aborts. User input
// and other ranks' messages never reach a check; they get a Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define HORON_CHECK(cond, why)                                                                     \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      std::fprintf(stderr, "horon: %s:%d: broken invariant (%s): %s\n", __FILE__, __LINE__, #cond, \
                   why);                                                                           \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)
