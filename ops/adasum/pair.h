// The pair formula of Adasum: what two gradients become. It is in runtime/device/weigh.h, so that
// GPUs weigh as hosts do.
//
// With equally many leaves on both sides it is the formula of Maleki et al., Scaling Distributed
// Training with Adaptive Summation, MLSys 2021; the weights make parallel gradients average exactly
// in trees of any shape, so that any number of ranks will do.
#pragma once

#include "runtime/device/weigh.h"

namespace horon::adasum {

using horon::Coefficients;
using horon::ZeroPolicy;

inline Coefficients CoefficientsOf(const Dots& dots, double leaves_a, double leaves_b,
                                   ZeroPolicy zeros) {
  return horon::CoefficientsOf(dots, {leaves_a, leaves_b, zeros});
}

}  // namespace horon::adasum
