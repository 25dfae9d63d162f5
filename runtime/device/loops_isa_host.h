// Loops that load and store registers by instructions of one set (registers_host.h). Included once
// for each set, by kernels_host.cc alone: HORON_ISA is the set, HORON_TARGET how a function is
// compiled for it. Stateless.

namespace horon {

// The steps of a DotsLoop or ShortDotsLoop, the last one filled up with zeros, and their totals.
template <typename Loop, int kStep>
struct DotsInSteps<HORON_ISA, Loop, kStep> {
  template <typename T>
  [[gnu::always_inline]] HORON_TARGET static void Go(const T* a, const T* b, int64_t n, Dots* sum) {
    typename Loop::Sums sums;
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      FetchAhead(a + i, kStep);
      FetchAhead(b + i, kStep);
      Loop::Step(a + i, b + i, &sums);
    }
    if (i < n) {
      T x[kStep] = {}, y[kStep] = {};
      std::memcpy(x, a + i, static_cast<size_t>(n - i) * sizeof(T));
      std::memcpy(y, b + i, static_cast<size_t>(n - i) * sizeof(T));
      Loop::Step(x, y, &sums);
    }
    sum->ab += sums.ab.Total();
    sum->aa += sums.aa.Total();
    sum->bb += sums.bb.Total();
  }
};

// Adds a.b, a.a and b.b of n elements, fp32 or narrower, to *sum.
template <typename T>
struct DotsLoop<HORON_ISA, T> {
  using L = Lanes<HORON_ISA>;
  struct Sums {
    L ab, aa, bb;
  };

  [[gnu::always_inline]] HORON_TARGET static void Step(const T* a, const T* b, Sums* sums) {
#pragma GCC unroll 8
    for (int r = 0; r < L::kRegisters; ++r) {
      typename L::Wide x, y;
      Registers<HORON_ISA>::Load(a + r * kWidth<HORON_ISA>, &x);
      Registers<HORON_ISA>::Load(b + r * kWidth<HORON_ISA>, &y);
      sums->ab.sums[r] += x * y;
      sums->aa.sums[r] += x * x;
      sums->bb.sums[r] += y * y;
    }
  }

  [[gnu::always_inline]] HORON_TARGET static void Go(const T* a, const T* b, int64_t n, Dots* sum) {
    DotsInSteps<HORON_ISA, DotsLoop, kLanes>::Go(a, b, n, sum);
  }
};

#if HORON_HAS_FLOATS

// The same of at most kDotBlock fp16, or bf16 whose products fp32 can hold.
template <typename T>
struct ShortDotsLoop<HORON_ISA, T> {
  using R = Registers<HORON_ISA>;
  static constexpr int kSteps = kShortLanes / R::kFloats;
  struct Lanes {
    typename R::Float x[kSteps] = {}, y[kSteps] = {};

    [[gnu::always_inline]] HORON_TARGET double Total() const {
      float pairs[kShortLanes / 2];
      for (int s = 0; s < kSteps; ++s) {
        const typename R::Float sum = kNeighbours<T> ? x[s] + y[s] : At(s) + At(s + kSteps);
        std::memcpy(pairs + s * R::kFloats / 2, &sum, sizeof sum);
      }
      return TotalOf(pairs);
    }
    // The registers in the order of the elements, but for bf16.
    [[gnu::always_inline]] HORON_TARGET typename R::Float At(int r) const {
      return r % 2 == 0 ? x[r / 2] : y[r / 2];
    }
  };
  struct Sums {
    Lanes ab, aa, bb;
  };

  // What is lost of bf16's smallest products is rounded alike on every instruction set.
  [[gnu::always_inline]] HORON_TARGET static void Add(typename R::Float product,
                                                      typename R::Float* sum) {
    if constexpr (kNeighbours<T>) HORON_FORGET(product);
    *sum += product;
  }
  [[gnu::always_inline]] HORON_TARGET static void Step(const T* a, const T* b, Sums* sums) {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      typename R::Float a0, a1, b0, b1;
      R::Load(a + s * R::kFloats, &a0, &a1);
      R::Load(b + s * R::kFloats, &b0, &b1);
      Add(a0 * b0, &sums->ab.x[s]);
      Add(a1 * b1, &sums->ab.y[s]);
      Add(a0 * a0, &sums->aa.x[s]);
      Add(a1 * a1, &sums->aa.y[s]);
      Add(b0 * b0, &sums->bb.x[s]);
      Add(b1 * b1, &sums->bb.y[s]);
    }
  }
  [[gnu::always_inline]] HORON_TARGET static void Go(const T* a, const T* b, int64_t n, Dots* sum) {
    DotsInSteps<HORON_ISA, ShortDotsLoop, kShortLanes>::Go(a, b, n, sum);
  }
};

// Two inputs in one pass: out = scale * (a + b), fp32 or narrower, and copy the same unless it is
// null.
template <typename T>
struct PairSumLoop<HORON_ISA, T> {
  using R = Registers<HORON_ISA>;
  [[gnu::always_inline]] HORON_TARGET static void Go(const T* a, const T* b, double scale, T* out,
                                                     T* copy, int64_t n) {
    const float s = Factor(scale);
    int64_t i = 0;
    for (; i + R::kFloats <= n; i += R::kFloats) {
      FetchAhead(a + i, R::kFloats);
      FetchAhead(b + i, R::kFloats);
      typename R::Float a0, a1, b0, b1;
      R::Load(a + i, &a0, &a1);
      R::Load(b + i, &b0, &b1);
      a0 = (a0 + b0) * s;
      a1 = (a1 + b1) * s;
      R::Store(a0, a1, out + i, copy == nullptr ? nullptr : copy + i);
    }
    for (; i < n; ++i) {
      NarrowTo(s * (WidenOne(a[i]) + WidenOne(b[i])), out + i);
      if (copy != nullptr) copy[i] = out[i];
    }
  }
};

// out = a x + b y, fp32 or narrower, and copy the same unless it is null. Both products are rounded
// before they are added, on every instruction set: the compiler does not know any more that they
// are products.
template <typename T>
struct PairCombineLoop<HORON_ISA, T> {
  using R = Registers<HORON_ISA>;
  [[gnu::always_inline]] HORON_TARGET static void Go(double a, const T* x, double b, const T* y,
                                                     T* out, T* copy, int64_t n) {
    const float left = Factor(a), right = Factor(b);
    int64_t i = 0;
    for (; i + R::kFloats <= n; i += R::kFloats) {
      FetchAhead(x + i, R::kFloats);
      FetchAhead(y + i, R::kFloats);
      typename R::Float u0, u1, v0, v1;
      R::Load(x + i, &u0, &u1);
      R::Load(y + i, &v0, &v1);
      u0 *= left;
      u1 *= left;
      v0 *= right;
      v1 *= right;
      HORON_FORGET(u0);
      HORON_FORGET(u1);
      HORON_FORGET(v0);
      HORON_FORGET(v1);
      u0 += v0;
      u1 += v1;
      R::Store(u0, u1, out + i, copy == nullptr ? nullptr : copy + i);
    }
    for (; i < n; ++i) {
      float u = left * WidenOne(x[i]), v = right * WidenOne(y[i]);
      HORON_FORGET(u);
      HORON_FORGET(v);
      NarrowTo(u + v, out + i);
      if (copy != nullptr) copy[i] = out[i];
    }
  }
};

#endif

}  // namespace horon

#undef HORON_ISA
#undef HORON_TARGET
#undef HORON_HAS_FLOATS
