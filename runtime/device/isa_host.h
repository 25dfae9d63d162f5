// One loop, compiled for several instruction sets of the host, one of which is chosen at run time.
//
// On<isa>::Run<Loop>(arguments...) runs Loop::Go compiled for `isa`. Go is written once, in plain
// C++ that the compiler vectorises, and inlined into each of these functions. The bits of a result
// do not depend on the instruction set: no loop has a rounded product that feeds a sum (so nothing
// can be contracted to a fused multiply-add), and nothing is reassociated. Only the payload of a
// NaN is left open.
//
// Included by kernels_host.cc alone; stateless.
#pragma once

#include <cstdint>

#include "runtime/device/kernels_host.h"

namespace horon {

template <Isa isa>
struct On;

template <>
struct On<Isa::kPlain> {
  template <class Loop, class... Arguments>
  [[gnu::noinline]] static void Run(Arguments... arguments) {
    Loop::Go(arguments...);
  }
};

#if defined(__x86_64__)
template <>
struct On<Isa::kAvx2> {
  template <class Loop, class... Arguments>
  [[gnu::noinline, gnu::target("avx2,f16c")]] static void Run(Arguments... arguments) {
    Loop::Go(arguments...);
  }
};

template <>
struct On<Isa::kAvx512> {
  template <class Loop, class... Arguments>
  [[gnu::noinline, gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] static void Run(
      Arguments... arguments) {
    Loop::Go(arguments...);
  }
};
#elif defined(__aarch64__)
// Every 64-bit ARM has it, so the plain loops are compiled for it as well: they lack the
// conversions of 16-bit floats alone.
template <>
struct On<Isa::kNeon> {
  template <class Loop, class... Arguments>
  [[gnu::noinline]] static void Run(Arguments... arguments) {
    Loop::Go(arguments...);
  }
};
#endif

}  // namespace horon
