#include "runtime/device/kernels_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/device/dots_host.h"
#include "runtime/device/isa_host.h"
#include "runtime/device/loops_host.h"

#define HORON_ISA Isa::kPlain
#define HORON_TARGET
#define HORON_HAS_FLOATS 0
#include "runtime/device/loops_isa_host.h"
#if defined(__x86_64__)
#define HORON_ISA Isa::kAvx2
#define HORON_TARGET [[gnu::target("avx2,f16c")]]
#define HORON_HAS_FLOATS 1
#include "runtime/device/loops_isa_host.h"
#define HORON_ISA Isa::kAvx512
#define HORON_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]]
#define HORON_HAS_FLOATS 1
#include "runtime/device/loops_isa_host.h"
#elif defined(__aarch64__)
#define HORON_ISA Isa::kNeon
#define HORON_TARGET
#define HORON_HAS_FLOATS 1
#include "runtime/device/loops_isa_host.h"
#endif

namespace horon {
namespace {

// An accumulator, a widened input and the output of this size stay in any level-1 cache together.
constexpr int64_t kBlockBytes = 8192;

// Calls step(begin, count) for each block of [0, count).
template <typename Element, typename Step>
void InBlocks(int64_t count, Step step) {
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(Element));
  for (int64_t begin = 0; begin < count; begin += kBlock)
    step(begin, std::min(kBlock, count - begin));
}

template <typename Element>
struct alignas(64) Block {
  Element at[kBlockBytes / sizeof(Element)];
};

template <typename T>
const T* As(const std::byte* bytes) {
  return reinterpret_cast<const T*>(bytes);
}
template <typename T>
T* As(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

void Copy(const void* from, void* to, int64_t bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Calls f with the loops' word for `kind` on elements of type T.
template <typename T, typename F>
void WithFold(ReduceKind kind, F f) {
  switch (kind) {
    case ReduceKind::kSum:
      return f(Sum<T>{});
    case ReduceKind::kMin:
      return f(Min<T>{});
    case ReduceKind::kMax:
      return f(Max<T>{});
    case ReduceKind::kProduct:
      return f(Product<T>{});
  }
}

using Inputs = std::span<const std::byte* const>;
using Copies = std::span<std::byte* const>;

// Two inputs of at most fp32 are added, scaled and rounded in one pass, if there is a loop for it,
// which also stores a copy (unless that is null).
template <Isa isa, typename T, typename Fold>
bool SumsPair(double scale, Inputs inputs, T* out, T* copy, int64_t count) {
  constexpr bool kNarrow = std::is_class_v<T> || std::is_same_v<T, float>;
  if constexpr (Registers<isa>::kHas && kNarrow && std::is_same_v<Fold, Sum<float>>) {
    if (inputs.size() == 2) {
      On<isa>::template Run<PairSumLoop<isa, T>>(As<T>(inputs[0]), As<T>(inputs[1]), scale, out,
                                                 copy, count);
      return true;
    }
  }
  HORON_CHECK(copy == nullptr, "nothing but the sum of a pair is copied as it is stored");
  return false;
}

// Elements that are added as they are stored. Partial results live in a block of their own, because
// `out` may be an input that is still to come.
template <Isa isa, typename T, typename Fold>
void ReduceNative(double scale, Inputs inputs, T* out, T* copy, int64_t count) {
  if (SumsPair<isa, T, Fold>(scale, inputs, out, copy, count)) return;
  InBlocks<T>(count, [&](int64_t begin, int64_t n) {
    Block<T> partial;
    T* result = out + begin;
    const T* left = As<T>(inputs[0]) + begin;
    for (size_t i = 1; i < inputs.size(); ++i) {
      T* to = i + 1 == inputs.size() ? result : partial.at;
      On<isa>::template Run<FoldLoop<T, Fold>>(left, As<T>(inputs[i]) + begin, to, n);
      left = to;
    }
    if (scale != 1.0) {
      On<isa>::template Run<ScaleLoop<T>>(left, scale, result, n);
    } else if (inputs.size() == 1) {
      Copy(left, result, n * static_cast<int64_t>(sizeof(T)));
    }
  });
}

// fp16 and bf16: added in fp32, rounded once.
template <Isa isa, typename Stored, typename Fold>
void ReduceWidened(double scale, Inputs inputs, Stored* out, Stored* copy, int64_t count) {
  if (SumsPair<isa, Stored, Fold>(scale, inputs, out, copy, count)) return;
  InBlocks<float>(count, [&](int64_t begin, int64_t n) {
    Block<float> sum, next;
    On<isa>::template Run<Widen<isa, Stored>>(As<Stored>(inputs[0]) + begin, sum.at, n);
    for (size_t i = 1; i < inputs.size(); ++i) {
      On<isa>::template Run<Widen<isa, Stored>>(As<Stored>(inputs[i]) + begin, next.at, n);
      On<isa>::template Run<FoldLoop<float, Fold>>(sum.at, next.at, sum.at, n);
    }
    if (scale != 1.0) On<isa>::template Run<ScaleLoop<float>>(sum.at, scale, sum.at, n);
    On<isa>::template Run<Narrow<isa, Stored>>(sum.at, out + begin, n);
  });
}

template <Isa isa>
void ReduceBool(ReduceKind kind, Inputs inputs, std::byte* out, int64_t count) {
  if (kind == ReduceKind::kSum || kind == ReduceKind::kMax) {
    ReduceNative<isa, uint8_t, Or>(1.0, inputs, As<uint8_t>(out), nullptr, count);
  } else {
    ReduceNative<isa, uint8_t, And>(1.0, inputs, As<uint8_t>(out), nullptr, count);
  }
}

// The same kernel in blocks, each of which is copied out of the cache.
template <typename Kernel>
void ReduceAndCopy(Kernel reduce, int64_t element, Inputs inputs, std::byte* out, int64_t count,
                   Copies copies) {
  const int64_t block = kBlockBytes / element;
  std::vector<const std::byte*> at(inputs.begin(), inputs.end());
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t n = std::min(block, count - begin), offset = begin * element;
    reduce(at, out + offset, n);
    for (std::byte* copy : copies) Copy(out + offset, copy + offset, n * element);
    for (const std::byte*& input : at) input += n * element;
  }
}

// What SumsPair does.
template <Isa isa>
bool IsPairSum(ReduceKind kind, DataType dtype, Inputs inputs) {
  return Registers<isa>::kHas && kind == ReduceKind::kSum && IsFloat(dtype) && SizeOf(dtype) <= 4 &&
         inputs.size() == 2;
}

template <Isa isa>
void Reduce(ReduceKind kind, DataType dtype, double scale, Inputs inputs, std::byte* out,
            int64_t count, Copies copies) {
  HORON_CHECK(!inputs.empty(), "a reduction of nothing");
  if (!copies.empty() && !(copies.size() == 1 && IsPairSum<isa>(kind, dtype, inputs))) {
    const auto reduce = [&](Inputs of_block, std::byte* to, int64_t n) {
      Reduce<isa>(kind, dtype, scale, of_block, to, n, {});
    };
    return ReduceAndCopy(reduce, SizeOf(dtype), inputs, out, count, copies);
  }
  std::byte* const copy = copies.empty() ? nullptr : copies[0];
  const bool as_it_is = inputs.size() == 1 && scale == 1.0;
  if (as_it_is || (dtype == DataType::kBool && inputs.size() == 1)) {
    Copy(inputs[0], out, count * SizeOf(dtype));
    return;
  }
  WithType(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      ReduceBool<isa>(kind, inputs, out, count);
    } else if constexpr (std::is_class_v<T>) {
      WithFold<float>(kind, [&](auto fold) {
        ReduceWidened<isa, T, decltype(fold)>(scale, inputs, As<T>(out), As<T>(copy), count);
      });
    } else {
      WithFold<T>(kind, [&](auto fold) {
        ReduceNative<isa, T, decltype(fold)>(scale, inputs, As<T>(out), As<T>(copy), count);
      });
    }
  });
}

// One block of ToFloat and FromFloat; fp32 passes through.
template <Isa isa, typename T>
void ToFloatBlock(const T* in, float* out, int64_t n) {
  if constexpr (std::is_class_v<T>) {
    On<isa>::template Run<Widen<isa, T>>(in, out, n);
  } else if constexpr (std::is_same_v<T, float>) {
    Copy(in, out, n * static_cast<int64_t>(sizeof(float)));
  } else {
    On<isa>::template Run<ConvertLoop<T, float>>(in, out, n);
  }
}
template <Isa isa, typename T>
void FromFloatBlock(const float* in, T* out, int64_t n) {
  if constexpr (std::is_class_v<T>) {
    On<isa>::template Run<Narrow<isa, T>>(in, out, n);
  } else if constexpr (std::is_same_v<T, float>) {
    Copy(in, out, n * static_cast<int64_t>(sizeof(float)));
  } else {
    On<isa>::template Run<ConvertLoop<float, T>>(in, out, n);
  }
}

// Calls f with a value of the floating type `dtype`.
template <typename F>
void WithFloatType(DataType dtype, F f) {
  HORON_CHECK(IsFloat(dtype), "a kernel for floating dtypes only");
  WithType(dtype, [&](auto zero) {
    if constexpr (!std::is_integral_v<decltype(zero)>) f(zero);
  });
}

template <Isa isa>
void ToFloatOn(DataType from, const std::byte* in, float* out, int64_t count) {
  WithFloatType(from, [&](auto zero) { ToFloatBlock<isa>(As<decltype(zero)>(in), out, count); });
}
template <Isa isa>
void FromFloatOn(DataType to, const float* in, std::byte* out, int64_t count) {
  WithFloatType(to, [&](auto zero) { FromFloatBlock<isa>(in, As<decltype(zero)>(out), count); });
}

// Both products are stored before they are added: see isa_host.h on contraction.
template <Isa isa, typename T, typename Wide>
void CombineInBlocks(double a, const T* x, double b, const T* y, T* out, int64_t count, T* copy) {
  InBlocks<Wide>(count, [&](int64_t begin, int64_t n) {
    Block<Wide> left, right;
    if constexpr (std::is_same_v<T, Wide>) {
      On<isa>::template Run<ScaleLoop<Wide>>(x + begin, a, left.at, n);
      On<isa>::template Run<ScaleLoop<Wide>>(y + begin, b, right.at, n);
      On<isa>::template Run<FoldLoop<Wide, Sum<Wide>>>(left.at, right.at, out + begin, n);
    } else {
      ToFloatBlock<isa>(x + begin, left.at, n);
      ToFloatBlock<isa>(y + begin, right.at, n);
      On<isa>::template Run<ScaleLoop<Wide>>(left.at, a, left.at, n);
      On<isa>::template Run<ScaleLoop<Wide>>(right.at, b, right.at, n);
      On<isa>::template Run<FoldLoop<Wide, Sum<Wide>>>(left.at, right.at, left.at, n);
      FromFloatBlock<isa>(left.at, out + begin, n);
    }
    if (copy != nullptr) Copy(out + begin, copy + begin, n * static_cast<int64_t>(sizeof(T)));
  });
}

template <Isa isa>
void Combine(DataType dtype, double a, const std::byte* x, double b, const std::byte* y,
             std::byte* out, int64_t count, std::byte* copy) {
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if constexpr (std::is_same_v<Wide, float>) {
      constexpr double kMost = std::numeric_limits<float>::max();
      if (std::isfinite(a) && std::isfinite(b) && std::max(std::fabs(a), std::fabs(b)) > kMost) {
        CombineInDouble(a, As<T>(x), b, As<T>(y), As<T>(out), count);
        if (copy != nullptr) Copy(out, copy, count * SizeOf(dtype));
        return;
      }
    }
    if constexpr (Registers<isa>::kHas && std::is_same_v<Wide, float>) {
      On<isa>::template Run<PairCombineLoop<isa, T>>(a, As<T>(x), b, As<T>(y), As<T>(out),
                                                     As<T>(copy), count);
    } else {
      CombineInBlocks<isa, T, Wide>(a, As<T>(x), b, As<T>(y), As<T>(out), count, As<T>(copy));
    }
  });
}

// fp64's products are rounded, so they are stored before they are added; all others are exact.
template <Isa isa>
void DotsOf(const double* a, const double* b, int64_t n, Dots* sum) {
  Block<double> products;
  const auto add = [&](const double* x, const double* y, double* to) {
    On<isa>::template Run<FoldLoop<double, Product<double>>>(x, y, products.at, n);
    On<isa>::template Run<SumLoop<isa>>(static_cast<const double*>(products.at), n, to);
  };
  add(a, b, &sum->ab);
  add(a, a, &sum->aa);
  add(b, b, &sum->bb);
}

// A block's sum in fp32 of 16-bit floats. Without instructions for them they are widened, and
// products are stored before they are added: see isa_host.h on contraction.
template <Isa isa, typename T>
Dots ShortDotsOf(const T* a, const T* b, int64_t n) {
  Dots sum;
  if constexpr (Registers<isa>::kHas) {
    On<isa>::template Run<ShortDotsLoop<isa, T>>(a, b, n, &sum);
  } else {
    Block<float> x, y, products;
    On<isa>::template Run<Widen<isa, T>>(a, x.at, n);
    On<isa>::template Run<Widen<isa, T>>(b, y.at, n);
    const auto add = [&](const float* u, const float* v, double* to) {
      On<isa>::template Run<FoldLoop<float, Product<float>>>(u, v, products.at, n);
      On<isa>::template Run<ShortSumLoop<T>>(static_cast<const float*>(products.at), n, to);
    };
    add(x.at, y.at, &sum.ab);
    add(x.at, x.at, &sum.aa);
    add(y.at, y.at, &sum.bb);
  }
  return sum;
}

// Whether fp32 held the products under this square: none has overflowed, and what was lost of the
// smallest is nothing beside it. (Of zeros nothing was, which cannot be seen.)
bool HeldInFp32(double square) { return square > 0x1p-80 && std::isfinite(square); }

template <Isa isa, typename T>
void DotsOf16(const T* a, const T* b, int64_t n, Dots* sum) {
  const Dots in_fp32 = ShortDotsOf<isa>(a, b, n);
  if (std::is_same_v<T, Float16> || (HeldInFp32(in_fp32.aa) && HeldInFp32(in_fp32.bb))) {
    *sum = {sum->ab + in_fp32.ab, sum->aa + in_fp32.aa, sum->bb + in_fp32.bb};
  } else if constexpr (Registers<isa>::kHas) {
    On<isa>::template Run<DotsLoop<isa, T>>(a, b, n, sum);
  } else {
    Block<float> x, y;
    On<isa>::template Run<Widen<isa, T>>(a, x.at, n);
    On<isa>::template Run<Widen<isa, T>>(b, y.at, n);
    const float *left = x.at, *right = y.at;
    On<isa>::template Run<DotsLoop<isa, float>>(left, right, n, sum);
  }
}

template <Isa isa>
void AddDotsOn(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, Dots* sum) {
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_assert(kDotBlock <= kBlockBytes / static_cast<int64_t>(sizeof(double)));
    for (int64_t begin = 0; begin < count; begin += kDotBlock) {
      const int64_t n = std::min(kDotBlock, count - begin);
      const T *left = As<T>(a) + begin, *right = As<T>(b) + begin;
      if constexpr (std::is_same_v<T, double>) {
        DotsOf<isa>(left, right, n, sum);
      } else if constexpr (std::is_same_v<T, float>) {
        On<isa>::template Run<DotsLoop<isa, T>>(left, right, n, sum);
      } else {
        DotsOf16<isa>(left, right, n, sum);
      }
    }
  });
}

template <Isa isa>
constexpr HostKernels kKernels = {Reduce<isa>, Combine<isa>, AddDotsOn<isa>, ToFloatOn<isa>,
                                  FromFloatOn<isa>};

#if defined(__x86_64__)
const HostKernels* VectorKernels(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2");  // no CPU has AVX2 without F16C
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx512 && avx512) return &kKernels<Isa::kAvx512>;
  if (isa == Isa::kAvx2 && avx2) return &kKernels<Isa::kAvx2>;
  return nullptr;
}
#elif defined(__aarch64__)
const HostKernels* VectorKernels(Isa isa) {
  return isa == Isa::kNeon ? &kKernels<Isa::kNeon> : nullptr;
}
#else
const HostKernels* VectorKernels(Isa) { return nullptr; }
#endif

const HostKernels& Best() {
  static const HostKernels& best = []() -> const HostKernels& {
    for (const Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kNeon}) {
      if (const HostKernels* kernels = KernelsFor(isa)) return *kernels;
    }
    return kKernels<Isa::kPlain>;
  }();
  return best;
}

}  // namespace

const HostKernels* KernelsFor(Isa isa) {
  return isa == Isa::kPlain ? &kKernels<Isa::kPlain> : VectorKernels(isa);
}

void ReduceInto(ReduceKind kind, DataType dtype, double scale,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                std::span<std::byte* const> copies) {
  Best().reduce(kind, dtype, scale, inputs, out, count, copies);
}
void ScaleInto(DataType dtype, double scale, const std::byte* in, std::byte* out, int64_t count) {
  Best().reduce(ReduceKind::kSum, dtype, scale, {&in, 1}, out, count, {});
}

bool Supports(ReduceKind, DataType dtype, bool scaled) {
  return !(scaled && dtype == DataType::kBool);
}

void CombineInto(DataType dtype, double a, const std::byte* x, double b, const std::byte* y,
                 std::byte* out, int64_t count, std::byte* copy) {
  Best().combine(dtype, a, x, b, y, out, count, copy);
}
void CopyInto(const std::byte* in, std::byte* out, int64_t bytes) {
  if (bytes >= kPastCachesBytes) return CopyPastCaches(in, out, bytes);
  Copy(in, out, bytes);
}
// Whole lines: of half a one the rest would be fetched.
void CopyPastCaches(const std::byte* in, std::byte* out, int64_t bytes) {
  int64_t at = 0;
#if defined(__x86_64__)
  constexpr int64_t kLine = 64;
  const auto over = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLine);
  at = std::min((kLine - over) % kLine, bytes);
  Copy(in, out, at);
  if (at + kLine <= bytes) {
    for (; at + kLine <= bytes; at += kLine) {
      const auto* const from = reinterpret_cast<const __m128i*>(in + at);
      auto* const to = reinterpret_cast<__m128i*>(out + at);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
    }
    _mm_sfence();
  }
#endif
  Copy(in + at, out + at, bytes - at);
}
void AddDots(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, Dots* sum) {
  Best().dots(dtype, a, b, count, sum);
}
void ToFloat(DataType from, const std::byte* in, float* out, int64_t count) {
  Best().to_float(from, in, out, count);
}
void FromFloat(DataType to, const float* in, std::byte* out, int64_t count) {
  Best().from_float(to, in, out, count);
}

}  // namespace horon
