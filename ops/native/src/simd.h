// Sixteen float lanes on any target. Each instruction set compiles this file into its own namespace.
// No implicit contraction: the build uses -ffp-contract=off, so Fma() decides what is fused and every row count
// of a kernel performs the same operations on each element.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace MSMS_ISA {
typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint8_t U64 __attribute__((vector_size(64)));
constexpr int kLanes = 16;

inline F16 Load(const float *p) {
  F16 v;
  std::memcpy(&v, p, 64);
  return v;
}
inline void Store(float *p, F16 v) { std::memcpy(p, &v, 64); }
inline F16 Set(float x) { return F16{} + x; }
inline F16 ToFloat(I16 v) { return __builtin_convertvector(v, F16); }

inline F16 LoadPart(const float *p, int n) {
  F16 v = {};
  std::memcpy(&v, p, 4 * static_cast<size_t>(n));
  return v;
}
inline void StorePart(float *p, F16 v, int n) { std::memcpy(p, &v, 4 * static_cast<size_t>(n)); }

#if defined(__AVX512F__)
inline F16 Fma(F16 a, F16 b, F16 c) { return (F16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline F16 Max(F16 a, F16 b) { return (F16)_mm512_max_ps((__m512)a, (__m512)b); }
inline F16 Min(F16 a, F16 b) { return (F16)_mm512_min_ps((__m512)a, (__m512)b); }
inline F16 LoadHalf(const uint16_t *p) { return (F16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
inline void StoreHalf(uint16_t *p, F16 v) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
inline I16 RoundToInt(F16 v) { return (I16)_mm512_cvtps_epi32((__m512)v); }
inline void StoreBytes(int8_t *p, I16 v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v)); }
#elif defined(__AVX2__)
struct Halves {
  __m256 lo, hi;
};
inline Halves Split(F16 v) {
  Halves h;
  std::memcpy(&h, &v, 64);
  return h;
}
inline F16 Join(__m256 lo, __m256 hi) {
  Halves h{lo, hi};
  F16 v;
  std::memcpy(&v, &h, 64);
  return v;
}
inline F16 Fma(F16 a, F16 b, F16 c) {
  Halves x = Split(a), y = Split(b), z = Split(c);
  return Join(_mm256_fmadd_ps(x.lo, y.lo, z.lo), _mm256_fmadd_ps(x.hi, y.hi, z.hi));
}
inline F16 Max(F16 a, F16 b) {
  Halves x = Split(a), y = Split(b);
  return Join(_mm256_max_ps(x.lo, y.lo), _mm256_max_ps(x.hi, y.hi));
}
inline F16 Min(F16 a, F16 b) {
  Halves x = Split(a), y = Split(b);
  return Join(_mm256_min_ps(x.lo, y.lo), _mm256_min_ps(x.hi, y.hi));
}
inline F16 LoadHalf(const uint16_t *p) {
  return Join(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
inline void StoreHalf(uint16_t *p, F16 v) {
  Halves x = Split(v);
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline I16 RoundToInt(F16 v) {
  Halves x = Split(v);
  __m256i r[2] = {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
  I16 out;
  std::memcpy(&out, r, 64);
  return out;
}
inline void StoreBytes(int8_t *p, I16 v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(v[i]);
}
#else
inline F16 Fma(F16 a, F16 b, F16 c) { return a * b + c; }
inline F16 Max(F16 a, F16 b) { return a > b ? a : b; }
inline F16 Min(F16 a, F16 b) { return a < b ? a : b; }
inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  } else {
    const uint32_t bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
    std::memcpy(&value, &bits, 4);
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint16_t FloatToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // subnormal half: the addition rounds to a multiple of 2^-24, ties to even
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return sign | static_cast<uint16_t>(bits - 0x3f000000);
  }
  const uint32_t odd = (bits >> 13) & 1;
  return sign | static_cast<uint16_t>((bits - 0x38000000 + 0xfff + odd) >> 13);
}
inline F16 LoadHalf(const uint16_t *p) {
  F16 v;
  for (int i = 0; i < kLanes; ++i) v[i] = HalfToFloat(p[i]);
  return v;
}
inline void StoreHalf(uint16_t *p, F16 v) {
  for (int i = 0; i < kLanes; ++i) p[i] = FloatToHalf(v[i]);
}
inline I16 RoundToInt(F16 v) {
  I16 out;
  for (int i = 0; i < kLanes; ++i) out[i] = std::fabs(v[i]) < 2e9f ? static_cast<int32_t>(std::nearbyint(v[i])) : 0;
  return out;
}
inline void StoreBytes(int8_t *p, I16 v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(v[i]);
}
#endif

// Horizontal sums and maxima in one fixed order, the same on every path.
inline float Sum(F16 v) {
  float a[16];
  Store(a, v);
  for (int step = 8; step; step >>= 1)
    for (int i = 0; i < step; ++i) a[i] += a[i + step];
  return a[0];
}
inline float MaxLane(F16 v) {
  float a[16];
  Store(a, v);
  for (int step = 8; step; step >>= 1)
    for (int i = 0; i < step; ++i) a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
  return a[0];
}
inline F16 Abs(F16 v) { return (F16)((I16)v & 0x7fffffff); }

// exp(x): x = n ln2 + r, |r| <= ln2/2, Taylor-minimax polynomial of degree 6 (relative error about 1e-7).
inline F16 Exp(F16 x) {
  const F16 clamped = Max(Min(x, Set(88.3f)), Set(-87.3f));
  const I16 n = RoundToInt(clamped * Set(1.44269504f));
  const F16 nf = ToFloat(n);
  F16 r = Fma(nf, Set(-0.693359375f), clamped);
  r = Fma(nf, Set(2.12194440e-4f), r);
  F16 p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  F16 y = Fma(p * r, r, r) + Set(1.0f);
  y = y * (F16)((n + 127) << 23);
  const I16 zero = x < Set(-87.3f);          // below the smallest normal number
  const I16 nan = x != x;
  y = (F16)((I16)y & ~zero);
  return (F16)(((I16)y & ~nan) | ((I16)x & nan));
}
inline F16 Silu(F16 x) { return x / (Set(1.0f) + Exp(-x)); }
}  // namespace MSMS_ISA
