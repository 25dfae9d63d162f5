// Registers full of elements: two of fp32, or one of doubles, loaded and stored. Which of the two
// fp32 an element is in is left open: of bf16 every other one.
//
// For loops that the compiler does not vectorise well by itself: the conversions between 16-bit
// floats, fp32 and double have instructions of their own. The bits are those of WidenOne and
// NarrowOne (loops_host.h) and of plain conversions. What is stored as bf16 has been computed from
// bf16 and Factor's: its NaNs have nothing in their lower halves, which rounding leaves alone, so
// none is asked for. A copy may be null, what is stored first may not: asked of both, gcc converted
// later, and fp16 took half as long again. Included by kernels_host.cc alone; stateless.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <cstring>

#include "runtime/base/dtype.h"
#include "runtime/device/kernels_host.h"

namespace horon {

// Doubles in a register. The vector types are the compiler's own.
template <Isa isa>
inline constexpr int kWidth = isa == Isa::kAvx512 ? 8
                              : isa == Isa::kAvx2 ? 4
                                                  : 2;
template <int width>
struct Vectors;
template <>
struct Vectors<2> {
  using Wide = double __attribute__((vector_size(16)));
  using Narrow = float __attribute__((vector_size(8)));
};
template <>
struct Vectors<4> {
  using Wide = double __attribute__((vector_size(32)));
  using Narrow = float __attribute__((vector_size(16)));
};
template <>
struct Vectors<8> {
  using Wide = double __attribute__((vector_size(64)));
  using Narrow = float __attribute__((vector_size(32)));
};

// What a loop over memory reads kAheadBytes after its next `count` elements is fetched meanwhile:
// Intel's cores do not do so by themselves across pages. AMD's do (Zen 4): there it costs.
inline constexpr int64_t kAheadBytes = 1024, kFetchedBytes = 64;
#if defined(__x86_64__)
inline const bool fetches_ahead = !__builtin_cpu_is("amd");
#else
inline constexpr bool fetches_ahead = true;
#endif
template <typename T>
[[gnu::always_inline]] inline void FetchAhead(const T* from, int64_t count) {
  if (!fetches_ahead) return;
  for (int64_t at = 0; at < count * static_cast<int64_t>(sizeof(T)); at += kFetchedBytes)
    __builtin_prefetch(reinterpret_cast<const char*>(from) + kAheadBytes + at);
}

// A scalar that registers are multiplied by. A NaN's payload is left open: none.
[[gnu::always_inline]] inline float Factor(double value) {
  return value == value ? static_cast<float>(value) : __builtin_nanf("");
}

// The compiler forgets what it knows about a value in a vector register: of a product, that it may
// be contracted with the sum that it goes into.
#if defined(__x86_64__)
#define HORON_FORGET(value) __asm__("" : "+v"(value))
#elif defined(__aarch64__)
#define HORON_FORGET(value) __asm__("" : "+w"(value))
#endif

// Loops of loops_isa_host.h.
template <Isa isa, typename Loop, int kStep>
struct DotsInSteps;
template <Isa isa, typename T>
struct DotsLoop;
template <Isa isa, typename T>
struct ShortDotsLoop;
template <Isa isa, typename T>
struct PairSumLoop;
template <Isa isa, typename T>
struct PairCombineLoop;

template <Isa isa>
struct Registers {
  static constexpr bool kHas = false;  // loads and stores of the 16-bit floats

  [[gnu::always_inline]] static void Load(const float* from, Vectors<2>::Wide* to) {
    Vectors<2>::Narrow narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    *to = __builtin_convertvector(narrow, Vectors<2>::Wide);
  }
};

#if defined(__x86_64__)

#define HORON_WITH(isa) [[gnu::always_inline, gnu::target(isa)]] static
#define HORON_AVX2 HORON_WITH("avx2,f16c")
#define HORON_AVX512 HORON_WITH("avx512f,avx512bw,avx512dq,avx512vl,f16c")

inline constexpr int kHigh = -0x10000;  // the upper half of a word

template <>
struct Registers<Isa::kAvx2> {
  static constexpr bool kHas = true;
  static constexpr int kFloats = 16;  // of two registers
  using Float = __m256;

  HORON_AVX2 void Load(const float* from, __m256* x, __m256* y) {
    *x = _mm256_loadu_ps(from);
    *y = _mm256_loadu_ps(from + 8);
  }
  HORON_AVX2 void Load(const Float16* from, __m256* x, __m256* y) {
    const auto* at = reinterpret_cast<const __m128i*>(from);
    *x = _mm256_cvtph_ps(_mm_loadu_si128(at));
    *y = _mm256_cvtph_ps(_mm_loadu_si128(at + 1));
  }
  HORON_AVX2 void Load(const BFloat16* from, __m256* even, __m256* odd) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(stored, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(stored, _mm256_set1_epi32(kHigh)));
  }
  HORON_AVX2 void Store(const __m256& x, const __m256& y, float* to, float* copy) {
    _mm256_storeu_ps(to, x);
    _mm256_storeu_ps(to + 8, y);
    if (copy == nullptr) return;
    _mm256_storeu_ps(copy, x);
    _mm256_storeu_ps(copy + 8, y);
  }
  HORON_AVX2 void Store(const __m256& x, const __m256& y, Float16* to, Float16* copy) {
    const __m128i low = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1, high);
    if (copy == nullptr) return;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(copy), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(copy) + 1, high);
  }
  // Of what has been computed from bf16, as above.
  HORON_AVX2 void Store(const __m256& even, const __m256& odd, BFloat16* to, BFloat16* copy) {
    const __m256i low = _mm256_srli_epi32(Rounded(even), 16);
    const __m256i both = _mm256_blend_epi16(low, Rounded(odd), 0xaa);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), both);
    if (copy != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy), both);
  }
  // A bf16 in the upper half of each word.
  HORON_AVX2 __m256i Rounded(const __m256& value) {
    const __m256i word = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_add_epi32(word, half);
  }

  HORON_AVX2 void Load(const float* from, Vectors<4>::Wide* to) {
    *to = _mm256_cvtps_pd(_mm_loadu_ps(from));
  }
  HORON_AVX2 void Load(const Float16* from, Vectors<4>::Wide* to) {
    const __m128i stored = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    *to = _mm256_cvtps_pd(_mm_cvtph_ps(stored));
  }
  HORON_AVX2 void Load(const BFloat16* from, Vectors<4>::Wide* to) {
    const __m128i stored = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    *to = _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(stored), 16)));
  }
};

template <>
struct Registers<Isa::kAvx512> {
  static constexpr bool kHas = true;
  static constexpr int kFloats = 32;
  using Float = __m512;

  HORON_AVX512 void Load(const float* from, __m512* x, __m512* y) {
    *x = _mm512_loadu_ps(from);
    *y = _mm512_loadu_ps(from + 16);
  }
  HORON_AVX512 void Load(const Float16* from, __m512* x, __m512* y) {
    const auto* at = reinterpret_cast<const __m256i*>(from);
    *x = _mm512_cvtph_ps(_mm256_loadu_si256(at));
    *y = _mm512_cvtph_ps(_mm256_loadu_si256(at + 1));
  }
  HORON_AVX512 void Load(const BFloat16* from, __m512* even, __m512* odd) {
    const __m512i stored = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(stored, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(stored, _mm512_set1_epi32(kHigh)));
  }
  HORON_AVX512 void Store(const __m512& x, const __m512& y, float* to, float* copy) {
    _mm512_storeu_ps(to, x);
    _mm512_storeu_ps(to + 16, y);
    if (copy == nullptr) return;
    _mm512_storeu_ps(copy, x);
    _mm512_storeu_ps(copy + 16, y);
  }
  HORON_AVX512 void Store(const __m512& x, const __m512& y, Float16* to, Float16* copy) {
    const __m256i low = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + 1, high);
    if (copy == nullptr) return;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy) + 1, high);
  }
  // Of what has been computed from bf16, as above.
  HORON_AVX512 void Store(const __m512& even, const __m512& odd, BFloat16* to, BFloat16* copy) {
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    const __m512i low = _mm512_srli_epi32(Rounded(even), 16);
    const __m512i both = _mm512_mask_mov_epi16(low, kOdd, Rounded(odd));
    _mm512_storeu_si512(to, both);
    if (copy != nullptr) _mm512_storeu_si512(copy, both);
  }
  HORON_AVX512 __m512i Rounded(const __m512& value) {
    const __m512i word = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    return _mm512_add_epi32(word, half);
  }

  HORON_AVX512 void Load(const float* from, Vectors<8>::Wide* to) {
    *to = _mm512_cvtps_pd(_mm256_loadu_ps(from));
  }
  HORON_AVX512 void Load(const Float16* from, Vectors<8>::Wide* to) {
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    *to = _mm512_cvtps_pd(_mm256_cvtph_ps(stored));
  }
  HORON_AVX512 void Load(const BFloat16* from, Vectors<8>::Wide* to) {
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    *to =
        _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16)));
  }
};

#undef HORON_AVX512
#undef HORON_AVX2
#undef HORON_WITH

#elif defined(__aarch64__)

#define HORON_NEON [[gnu::always_inline]] static

// As F16C's, its conversions keep fp16's subnormals even where subnormal fp32 is switched off.
template <>
struct Registers<Isa::kNeon> {
  static constexpr bool kHas = true;
  static constexpr int kFloats = 8;
  using Float = float32x4_t;

  HORON_NEON void Load(const float* from, float32x4_t* x, float32x4_t* y) {
    *x = vld1q_f32(from);
    *y = vld1q_f32(from + 4);
  }
  HORON_NEON void Load(const Float16* from, float32x4_t* x, float32x4_t* y) {
    const float16x8_t stored = vreinterpretq_f16_u16(vld1q_u16(&from->bits));
    *x = vcvt_f32_f16(vget_low_f16(stored));
    *y = vcvt_high_f32_f16(stored);
  }
  HORON_NEON void Load(const BFloat16* from, float32x4_t* even, float32x4_t* odd) {
    const uint32x4_t stored = vreinterpretq_u32_u16(vld1q_u16(&from->bits));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(stored, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(stored, vdupq_n_u32(0xffff0000)));
  }
  HORON_NEON void Store(const float32x4_t& x, const float32x4_t& y, float* to, float* copy) {
    vst1q_f32(to, x);
    vst1q_f32(to + 4, y);
    if (copy == nullptr) return;
    vst1q_f32(copy, x);
    vst1q_f32(copy + 4, y);
  }
  HORON_NEON void Store(const float32x4_t& x, const float32x4_t& y, Float16* to, Float16* copy) {
    const uint16x8_t both = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x), y));
    vst1q_u16(&to->bits, both);
    if (copy != nullptr) vst1q_u16(&copy->bits, both);
  }
  // Of what has been computed from bf16, as above.
  HORON_NEON void Store(const float32x4_t& even, const float32x4_t& odd, BFloat16* to,
                        BFloat16* copy) {
    // Shifted right into the odd ones, which keep their upper halves.
    const uint16x8_t both = vreinterpretq_u16_u32(vsriq_n_u32(Rounded(odd), Rounded(even), 16));
    vst1q_u16(&to->bits, both);
    if (copy != nullptr) vst1q_u16(&copy->bits, both);
  }
  // A bf16 in the upper half of each word.
  HORON_NEON uint32x4_t Rounded(const float32x4_t& value) {
    const uint32x4_t word = vreinterpretq_u32_f32(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(word, 16), vdupq_n_u32(1));
    return vaddq_u32(word, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  }

  HORON_NEON void Load(const float* from, Vectors<2>::Wide* to) {
    *to = vcvt_f64_f32(vld1_f32(from));
  }
  HORON_NEON void Load(const Float16* from, Vectors<2>::Wide* to) {
    const float16x4_t stored = vreinterpret_f16_u32(Pair(from));
    *to = vcvt_f64_f32(vget_low_f32(vcvt_f32_f16(stored)));
  }
  HORON_NEON void Load(const BFloat16* from, Vectors<2>::Wide* to) {
    const uint32x4_t words = vshll_n_u16(vreinterpret_u16_u32(Pair(from)), 16);
    *to = vcvt_f64_f32(vget_low_f32(vreinterpretq_f32_u32(words)));
  }
  // Two 16-bit floats, and zeros behind them.
  HORON_NEON uint32x2_t Pair(const void* from) {
    uint32_t both;
    std::memcpy(&both, from, sizeof both);
    return vset_lane_u32(both, vdup_n_u32(0), 0);
  }
};

#undef HORON_NEON
#endif

}  // namespace horon
