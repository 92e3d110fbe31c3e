// Part of kernels.inl: what both directions of attention share.
typedef uint32_t W16 __attribute__((vector_size(64)));

namespace flash {
using msms::FlashBackward;
using msms::FlashForward;
using msms::FlashShape;
constexpr int64_t kKeys = msms::kFlashKeys, kPanel = msms::kFlashLanes;
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
// Rows and vectors of a product held in registers.
#if defined(__AVX512F__)
constexpr int kR = 8, kV = 2;
#elif defined(__AVX2__)
constexpr int kR = 4, kV = 1;
#else
constexpr int kR = 2, kV = 1;
#endif
constexpr int64_t kStep = 8;  // rows are counted in eights everywhere, a multiple of kR

// Set() adds a zero first, which a product has no time for.
inline F16 Spread(float x) { return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
inline I16 Lanes() { return I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
inline I16 SpreadInt(int64_t x) { return I16{} + static_cast<int32_t>(x); }
inline F16 Without(F16 v, I16 mask) { return (F16)((I16)v & ~mask); }
inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

// 2^x, 1 at 0 exactly, 0 far below: 2^n times a polynomial of degree 5 in x - n (relative error 2e-7).
#if defined(__AVX2__) && !defined(__AVX512F__)
inline __m256 Exp2Half(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-150.0f), _mm256_min_ps(_mm256_set1_ps(127.0f), x));
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(x, n);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(0.0013264726f), f, _mm256_set1_ps(0.009671513f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055507336f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022242f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.693147f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), y);
}
inline F16 Exp2(F16 x) {
  const Halves h = Split(x);
  return Join(Exp2Half(h.lo), Exp2Half(h.hi));
}
#else
inline F16 Exp2(F16 x) {
  x = Max(Spread(-150.0f), Min(Spread(127.0f), x));
#if defined(__AVX512F__)
  const F16 n = (F16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const I16 whole = RoundToInt(x);
  const F16 n = ToFloat(whole);
#endif
  const F16 f = x - n;
  F16 p = Fma(Spread(0.0013264726f), f, Spread(0.009671513f));
  p = Fma(p, f, Spread(0.055507336f));
  p = Fma(p, f, Spread(0.24022242f));
  p = Fma(p, f, Spread(0.693147f));
  p = Fma(p, f, Spread(1.0f));
#if defined(__AVX512F__)
  return (F16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  return Without(p * (F16)((whole + 127) << 23), x < Spread(-126.0f));
#endif
}
#endif

// True lanes are dropped: words a and b of each lane's query, its key.
inline I16 Dropped(W16 a, W16 b, W16 key, uint32_t threshold) {
  W16 x = a + key * 0x9e3779b9u;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = ((x ^ x >> 15) + b) * 0x846ca68bu;
  x = x ^ x >> 16;
  return (I16)(x >> 8) < SpreadInt(threshold);
}

// acc[r][.] += sum over i < depth of A(r, i) * B(i, .); A's rows lie one after the other (kRows), or its columns do.
template <bool kRows, int R, int V>
inline void Multiply(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t depth, F16 (&acc)[R][V]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // In halves throughout: joined and split at every step they would pass through memory.
  __m256 half[R][2 * V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < 2 * V; ++v) half[r][v] = _mm256_loadu_ps(reinterpret_cast<const float *>(acc[r]) + 8 * v);
  for (int64_t i = 0; i < depth; ++i) {
    __m256 w[2 * V];
#pragma GCC unroll 4
    for (int v = 0; v < 2 * V; ++v) w[v] = _mm256_loadu_ps(b + i * ldb + 8 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(kRows ? a + r * lda + i : a + i * lda + r);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * V; ++v) half[r][v] = _mm256_fmadd_ps(x, w[v], half[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < 2 * V; ++v) _mm256_storeu_ps(reinterpret_cast<float *>(acc[r]) + 8 * v, half[r][v]);
#else
#pragma GCC unroll 2
  for (int64_t i = 0; i < depth; ++i) {
    F16 w[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) w[v] = Load(b + i * ldb + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 x = Spread(kRows ? a[r * lda + i] : a[i * lda + r]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = Fma(x, w[v], acc[r][v]);
    }
  }
#endif
}

template <int R, int V>
inline void Clear(F16 (&acc)[R][V]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = Spread(0.0f);
}

// to[c * to_stride + r] = from[r * from_stride + c] for 16 rows and columns.
inline void Transpose16(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
#if defined(__AVX512F__)
  __m512 a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 16; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(b[i + j]), y = _mm512_castps_pd(b[i + j + 2]);
      a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
  for (int i = 0; i < 4; ++i) {  // a[4 g + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 g .. 4 g + 3
    const __m512 x = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), y = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
    const __m512 z = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88), w = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
    _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(x, z, 0x88));
    _mm512_storeu_ps(to + (4 + i) * to_stride, _mm512_shuffle_f32x4(y, w, 0x88));
    _mm512_storeu_ps(to + (8 + i) * to_stride, _mm512_shuffle_f32x4(x, z, 0xdd));
    _mm512_storeu_ps(to + (12 + i) * to_stride, _mm512_shuffle_f32x4(y, w, 0xdd));
  }
#else
  for (int c = 0; c < 16; ++c)
    for (int r = 0; r < 16; ++r) to[c * to_stride + r] = from[r * from_stride + c];
#endif
}

// Rows [0, n) of `dim` floats into rows of `padded`, times `by`; zeros up to row `total` and in the padding.
inline void CopyRows(const float *from, int64_t stride, int64_t n, int64_t total, int64_t dim, int64_t padded, float by, float *to) {
  const F16 scale = Spread(by);
  for (int64_t r = 0; r < n; ++r) {
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) Store(to + r * padded + d, Load(from + r * stride + d) * scale);
    if (d < dim) Store(to + r * padded + d, LoadPart(from + r * stride + d, static_cast<int>(dim - d)) * scale);
  }
  if (n < total) std::memset(to + n * padded, 0, static_cast<size_t>((total - n) * padded) * sizeof(float));
}
inline void StoreRow(float *to, const float *from, int64_t dim, float by) {
  const F16 scale = Spread(by);
  int64_t d = 0;
  for (; d + 16 <= dim; d += 16) Store(to + d, Load(from + d) * scale);
  if (d < dim) StorePart(to + d, Load(from + d) * scale, static_cast<int>(dim - d));
}

#include "kernels_flash_forward.inl"

#include "kernels_flash_backward.inl"
}  // namespace flash

const msms::FlashKernels kFlash = {flash::ForwardScratch, flash::BackwardScratch, flash::Forward, flash::Prepare, flash::Backward};
