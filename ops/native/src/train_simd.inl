// The vectors of the training kernels: as wide as one register of the instruction set, for wider ones live in memory.
// Part of kernels_train.inl.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float V __attribute__((vector_size(4 * kWidth)));
typedef int32_t VI __attribute__((vector_size(4 * kWidth)));
typedef uint32_t VU __attribute__((vector_size(4 * kWidth)));
typedef float Half __attribute__((vector_size(2 * kWidth)));
typedef double VD __attribute__((vector_size(4 * kWidth)));  // the doubles of a Half
using Full = std::integral_constant<int, kWidth>;

inline V All(float x) { return V{} + x; }
inline V Get(const float *p, Full) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
inline V Get(const float *p, int n) {
  V v = {};
  std::memcpy(&v, p, 4 * static_cast<size_t>(n));
  return v;
}
inline void Put(float *p, V v, Full) { std::memcpy(p, &v, sizeof(V)); }
inline void Put(float *p, V v, int n) { std::memcpy(p, &v, 4 * static_cast<size_t>(n)); }
template <class N>
inline void AddTo(float *p, V v, N n) { Put(p, Get(p, n) + v, n); }
// The first n lanes; the rest are zeros.
inline V First(V v, Full) { return v; }
inline V First(V v, int n) {
  float lanes[kWidth];
  Put(lanes, v, Full{});
  return Get(lanes, n);
}

// Of NaN and a number Max and Min give the second.
#if defined(__AVX512F__)
inline V Sqrt(V v) { return (V)_mm512_sqrt_ps((__m512)v); }
#elif defined(__AVX2__)
inline V Fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline V Max(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
inline V Min(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
inline V Sqrt(V v) { return (V)_mm256_sqrt_ps((__m256)v); }
#else
inline V Fma(V a, V b, V c) { return a * b + c; }
inline V Max(V a, V b) { return a > b ? a : b; }
inline V Min(V a, V b) { return a < b ? a : b; }
inline V Sqrt(V v) {
  for (int i = 0; i < kWidth; ++i) v[i] = std::sqrt(v[i]);
  return v;
}
#endif

#if !defined(__AVX512F__)
inline V Abs(V v) { return (V)((VI)v & 0x7fffffff); }
// As in simd.h; adding 1.5 * 2^23 leaves the rounded integer in the low bits.
inline V Exp(V x) {
  const V clamped = Max(Min(x, All(88.3f)), All(-87.3f)), magic = All(12582912.0f);
  const V shifted = clamped * All(1.44269504f) + magic, nf = shifted - magic;
  V r = Fma(nf, All(-0.693359375f), clamped);
  r = Fma(nf, All(2.12194440e-4f), r);
  V p = Fma(All(1.9875691500e-4f), r, All(1.3981999507e-3f));
  p = Fma(p, r, All(8.3334519073e-3f));
  p = Fma(p, r, All(4.1665795894e-2f));
  p = Fma(p, r, All(1.6666665459e-1f));
  p = Fma(p, r, All(5.0000001201e-1f));
  V y = Fma(p * r, r, r) + All(1.0f);
  y = y * (V)(((VI)shifted - (VI)magic + 127) << 23);
  const VI zero = x < All(-87.3f), nan = x != x;
  return (V)((((VI)y & ~zero) & ~nan) | ((VI)x & nan));
}
#endif

// All lanes in one fixed order.
inline float Across(V v) {
#if defined(__AVX512F__)
  __m256 half[2];
  std::memcpy(half, &v, 64);
  const __m256 eight = _mm256_add_ps(half[0], half[1]);
#elif defined(__AVX2__)
  const __m256 eight = (__m256)v;
#endif
#if defined(__AVX2__)
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

// Calls body(i, n) for every vector of [0, n); the last may be shorter. The full ones are known at compile time.
template <class Body>
inline void ForVectors(int64_t n, const Body &body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, Full{});
  if (i < n) body(i, static_cast<int>(n - i));
}
// The same with four accumulators in turn, chosen at compile time so that they stay in registers: body(i, n, slot).
template <class Body>
inline void ForSums(int64_t n, const Body &body) {
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    body(i, Full{}, std::integral_constant<int, 0>{});
    body(i + kWidth, Full{}, std::integral_constant<int, 1>{});
    body(i + 2 * kWidth, Full{}, std::integral_constant<int, 2>{});
    body(i + 3 * kWidth, Full{}, std::integral_constant<int, 3>{});
  }
  for (; i + kWidth <= n; i += kWidth) body(i, Full{}, std::integral_constant<int, 0>{});
  if (i < n) body(i, static_cast<int>(n - i), std::integral_constant<int, 1>{});
}
struct Sums {
  V of[4] = {};
  float Total() const { return Across((of[0] + of[1]) + (of[2] + of[3])); }
};
// Sums of squares in double, where the squares of floats are exact.
struct Squares {
  VD of[8] = {};
  template <class Slot>
  void Add(V v, Slot slot) {
    Half half[2];
    std::memcpy(half, &v, sizeof(V));
    for (int i = 0; i < 2; ++i) {
      const VD d = __builtin_convertvector(half[i], VD);
      of[2 * slot + i] += d * d;
    }
  }
  double Total() const {
    double sum = 0;
    for (const VD &v : of)
      for (int j = 0; j < kWidth / 2; ++j) sum += v[j];
    return sum;
  }
};
