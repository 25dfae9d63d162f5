// The inner loops of the host's kernels: short, without branches, so that the compiler vectorises
// them. Each is a struct with a Go that On<isa> (isa_host.h) compiles for its instruction set.
//
// In place is allowed throughout: out[i] depends on in[i] only, which HORON_INDEPENDENT tells the
// compiler. Included by kernels_host.cc alone; stateless.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "runtime/base/dtype.h"
#include "runtime/device/kernels_host.h"

#if defined(__clang__)
#define HORON_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HORON_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace horon {

// --- what two elements become ------------------------------------------------------------------

// Integers wrap: computed in an unsigned type of at least 32 bits, where overflow is defined.
template <typename T>
struct Modular {
  using Type = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
};
template <>
struct Modular<float> {
  using Type = float;
};
template <>
struct Modular<double> {
  using Type = double;
};

template <typename T>
struct Sum {
  static T Of(T a, T b) {
    using M = typename Modular<T>::Type;
    return static_cast<T>(static_cast<M>(a) + static_cast<M>(b));
  }
};
template <typename T>
struct Product {
  static T Of(T a, T b) {
    using M = typename Modular<T>::Type;
    return static_cast<T>(static_cast<M>(a) * static_cast<M>(b));
  }
};
// NaN wins: a != a is true for NaN alone, and a comparison with a NaN b is false and takes b.
// Bitwise "or", because "||" would be a branch.
template <typename T>
struct Min {
  static T Of(T a, T b) {
    return (static_cast<int>(a < b) | static_cast<int>(a != a)) != 0 ? a : b;
  }
};
template <typename T>
struct Max {
  static T Of(T a, T b) {
    return (static_cast<int>(a > b) | static_cast<int>(a != a)) != 0 ? a : b;
  }
};
// bool, stored as a byte; any byte but 0 is true.
struct Or {
  static uint8_t Of(uint8_t a, uint8_t b) { return (a | b) != 0 ? 1 : 0; }
};
struct And {
  static uint8_t Of(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>((a != 0 ? 1 : 0) & (b != 0 ? 1 : 0));
  }
};

// scale * x: floats in their own type, integers in double, truncated, at the ends of their range if
// beyond (a conversion out of range would be undefined), 0 for a NaN. 1/49 is rounded, and so is 49
// times that: what misses an integer by no more than rounding is that integer.
template <typename T>
T Scaled(T x, double scale) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(scale) * x;
  } else {
    using Limits = std::numeric_limits<T>;
    constexpr double kLeast = static_cast<double>(Limits::min());
    // The largest double not above the maximum; below 2^63 by its spacing there.
    constexpr double kMost =
        sizeof(T) == 8 ? 9223372036854774784.0 : static_cast<double>(Limits::max());
    const double exact = static_cast<double>(x) * scale;
    const bool has_fractions = exact < 0x1p50 && exact > -0x1p50;
    const double value = has_fractions ? exact * (1 + 0x1p-50) : exact;
    const double low = value > kLeast ? value : kLeast;
    const T inside = static_cast<T>(low < kMost ? low : kMost);
    const T most = value > kMost ? Limits::max() : inside;
    return value != value ? T{0} : most;
  }
}

// --- the 16-bit floats: as the hardware converts them, NaNs quiet with their payload -------------

// `yes` or `no` without a branch, which would keep the loop from being vectorised.
inline uint32_t Choose(bool which, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & (0u - uint32_t{which}));
}

inline float WidenOne(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Subnormals go through an integer conversion, which is exact even where a framework has switched
// subnormal fp32 off.
inline float WidenOne(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t rest = value.bits & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  const uint32_t normal = (rest << 13) + 0x38000000u;
  const uint32_t quiet = Choose(rest > 0x7c00u, 0x400000u, 0u);
  const uint32_t special = (rest << 13) | 0x7f800000u | quiet;
  const uint32_t finite = Choose(rest < 0x400u, std::bit_cast<uint32_t>(subnormal), normal);
  return std::bit_cast<float>(sign | Choose(rest >= 0x7c00u, special, finite));
}

inline float WidenOne(float value) { return value; }

inline uint16_t NarrowOne(BFloat16, float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t nan = (word >> 16) | 0x40u;
  const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(Choose((word & 0x7fffffffu) > 0x7f800000u, nan, rounded));
}

// Adding 0.5 to something below 2^-14 leaves its multiple of 2^-24, rounded to even, at the end.
inline uint16_t NarrowOne(Float16, float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t rest = word & 0x7fffffffu;
  const uint32_t nan = 0x7e00u | ((rest >> 13) & 0x3ffu);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  const uint32_t finite = Choose(rest < 0x38800000u, subnormal, normal);
  const uint32_t bounded = Choose(rest >= 0x477ff000u, 0x7c00u, finite);  // rounds past 65504: Inf
  return static_cast<uint16_t>(sign | Choose(rest > 0x7f800000u, nan, bounded));
}

inline void NarrowTo(float value, float* to) { *to = value; }
template <typename Stored>
void NarrowTo(float value, Stored* to) {
  to->bits = NarrowOne(Stored{}, value);
}

// --- loops --------------------------------------------------------------------------------------

template <typename T, typename Fold>
struct FoldLoop {
  [[gnu::always_inline]] static void Go(const T* a, const T* b, T* out, int64_t n) {
    HORON_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = Fold::Of(a[i], b[i]);
  }
};

template <typename T>
struct ScaleLoop {
  [[gnu::always_inline]] static void Go(const T* in, double scale, T* out, int64_t n) {
    HORON_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = Scaled(in[i], scale);
  }
};

template <typename From, typename To>
struct ConvertLoop {
  [[gnu::always_inline]] static void Go(const From* in, To* out, int64_t n) {
    HORON_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(in[i]);
  }
};

template <Isa, typename Stored>
struct Widen {
  [[gnu::always_inline]] static void Go(const Stored* in, float* out, int64_t n) {
    HORON_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = WidenOne(in[i]);
  }
};

template <Isa, typename Stored>
struct Narrow {
  [[gnu::always_inline]] static void Go(const float* in, Stored* out, int64_t n) {
    HORON_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i].bits = NarrowOne(Stored{}, in[i]);
  }
};

#if defined(__x86_64__)
// fp16 has instructions (F16C) that the compiler does not find by itself.
template <Isa isa>
  requires(isa != Isa::kPlain)
struct Widen<isa, Float16> {
  [[gnu::always_inline, gnu::target("avx2,f16c")]] static void Go(const Float16* in, float* out,
                                                                  int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(stored));
    }
    for (; i < n; ++i) out[i] = WidenOne(in[i]);
  }
};

template <Isa isa>
  requires(isa != Isa::kPlain)
struct Narrow<isa, Float16> {
  [[gnu::always_inline, gnu::target("avx2,f16c")]] static void Go(const float* in, Float16* out,
                                                                  int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i stored = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), stored);
    }
    for (; i < n; ++i) out[i].bits = NarrowOne(Float16{}, in[i]);
  }
};
#elif defined(__aarch64__)
template <>
struct Widen<Isa::kNeon, Float16> {
  [[gnu::always_inline]] static void Go(const Float16* in, float* out, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      const uint16x4_t stored = vld1_u16(&in[i].bits);
      vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(stored)));
    }
    for (; i < n; ++i) out[i] = WidenOne(in[i]);
  }
};

template <>
struct Narrow<Isa::kNeon, Float16> {
  [[gnu::always_inline]] static void Go(const float* in, Float16* out, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      const float16x4_t rounded = vcvt_f16_f32(vld1q_f32(in + i));
      vst1_u16(&out[i].bits, vreinterpret_u16_f16(rounded));
    }
    for (; i < n; ++i) out[i].bits = NarrowOne(Float16{}, in[i]);
  }
};
#endif

// Coefficients beyond fp32, which two parallel vectors of very different length have. Rare: plain.
template <typename T>
void CombineInDouble(double a, const T* x, double b, const T* y, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const volatile double left = a * static_cast<double>(static_cast<float>(x[i]));
    const volatile double right = b * static_cast<double>(static_cast<float>(y[i]));
    out[i] = T(static_cast<float>(left + right));
  }
}

}  // namespace horon
