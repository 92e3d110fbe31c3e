// Matrix products: packing, and the tile of C in registers. Part of kernels.inl.
#if defined(__AVX512F__)
typedef __m512 Vec;
constexpr int kVec = 16, kMr = 14;
inline Vec VLoad(const float *p) { return _mm512_loadu_ps(p); }
inline Vec VSet(float x) { return _mm512_set1_ps(x); }
inline void VStore(float *p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec VFma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec VLoadPart(const float *p, int n) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p); }
inline void VStorePart(float *p, Vec v, int n) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v); }
#else
#if defined(__AVX2__)
typedef __m256 Vec;
constexpr int kVec = 8, kMr = 6;
inline Vec VLoad(const float *p) { return _mm256_loadu_ps(p); }
inline Vec VSet(float x) { return _mm256_set1_ps(x); }
inline void VStore(float *p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec VFma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#else
typedef float Vec __attribute__((vector_size(16)));
constexpr int kVec = 4, kMr = 6;
inline Vec VLoad(const float *p) {
  Vec v;
  std::memcpy(&v, p, 16);
  return v;
}
inline Vec VSet(float x) { return Vec{x, x, x, x}; }
inline void VStore(float *p, Vec v) { std::memcpy(p, &v, 16); }
inline Vec VFma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif
inline Vec VLoadPart(const float *p, int n) {
  float all[kVec] = {};
  std::memcpy(all, p, 4 * static_cast<size_t>(n));
  return VLoad(all);
}
inline void VStorePart(float *p, Vec v, int n) {
  float all[kVec];
  VStore(all, v);
  std::memcpy(p, all, 4 * static_cast<size_t>(n));
}
#endif
constexpr int kNr = 2 * kVec;
constexpr int64_t kDepth = msms::kGemmDepth;

// The last rows are cut into powers of two.
inline int TileRows(int64_t left) { return left >= kMr ? kMr : left >= 8 && kMr > 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

#include "kernels_gemm_pack.inl"

// `kM` rows of A times a panel of B: columns 0 .. n of C, n <= kN vectors. A is rows kDepth apart or, where kPacked,
// columns of kM.
template <int kM, int kN, bool kPacked>
void Tile(const float *a, const float *b, int64_t depth, float *c, int64_t ldc, int n, bool add, const float *bias) {
  Vec acc[kM][kN];
#pragma GCC unroll 16
  for (int r = 0; r < kM; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kN; ++v) {
      acc[r][v] = VSet(0.0f);
      __builtin_prefetch(c + r * ldc + v * kVec, 1);
    }
  for (int64_t k = 0; k < depth; ++k, b += kNr) {
    Vec column[kN];
#pragma GCC unroll 2
    for (int v = 0; v < kN; ++v) column[v] = VLoad(b + v * kVec);
#pragma GCC unroll 16
    for (int r = 0; r < kM; ++r) {
      const Vec x = VSet(kPacked ? a[k * kM + r] : a[r * kDepth + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kN; ++v) acc[r][v] = VFma(x, column[v], acc[r][v]);
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kN; ++v) {
    const int count = n - v * kVec < kVec ? n - v * kVec : kVec;
    if (count <= 0) break;
    if (count == kVec) {
      const Vec offset = bias ? VLoad(bias + v * kVec) : VSet(0.0f);
#pragma GCC unroll 16
      for (int r = 0; r < kM; ++r) {
        float *p = c + r * ldc + v * kVec;
        Vec y = acc[r][v];
        if (bias) y = y + offset;
        if (add) y = y + VLoad(p);
        VStore(p, y);
      }
    } else {
      const Vec offset = bias ? VLoadPart(bias + v * kVec, count) : VSet(0.0f);
#pragma GCC unroll 16
      for (int r = 0; r < kM; ++r) {
        float *p = c + r * ldc + v * kVec;
        Vec y = acc[r][v];
        if (bias) y = y + offset;
        if (add) y = y + VLoadPart(p, count);
        VStorePart(p, y, count);
      }
    }
  }
}

using TileFunction = void (*)(const float *, const float *, int64_t, float *, int64_t, int, bool, const float *);
template <int kM>
inline TileFunction ChooseTile(bool wide, bool packed) {
  return packed ? (wide ? Tile<kM, 2, true> : Tile<kM, 1, true>) : (wide ? Tile<kM, 2, false> : Tile<kM, 1, false>);
}
inline TileFunction ChooseTile(int rows, bool wide, bool packed) {
  switch (rows) {
    case 1: return ChooseTile<1>(wide, packed);
    case 2: return ChooseTile<2>(wide, packed);
    case 4: return ChooseTile<4>(wide, packed);
#if defined(__AVX512F__)
    case 8: return ChooseTile<8>(wide, packed);
#endif
    default: return ChooseTile<kMr>(wide, packed);
  }
}

void GemmBlock(const msms::GemmArgs &g, const msms::GemmBlock &block, const float *panels, float *rows) {
  const int64_t depth = block.k1 - block.k0;
  const bool add = g.add || block.k0 > 0;
  const float *bias = block.k0 > 0 ? nullptr : g.bias;
  if (g.a_transposed) PackColumns(g, block, rows);
  else PackRows(g, block, rows);
  for (int64_t i = block.i0; i < block.i1;) {
    const int count = TileRows(block.i1 - i);
    const TileFunction wide = ChooseTile(count, true, g.a_transposed), narrow = ChooseTile(count, false, g.a_transposed);
    for (int64_t j = block.j0; j < block.j1; j += kNr) {
      const int n = static_cast<int>(block.j1 - j < kNr ? block.j1 - j : kNr);
      (n > kVec ? wide : narrow)(rows, panels + (j - block.j0) * depth, depth, g.c + i * g.ldc + j, g.ldc, n, add, bias ? bias + j : nullptr);
    }
    rows += count * (g.a_transposed ? depth : kDepth);
    i += count;
  }
}

// Sums of at most 64 * 16 exponentials are formed in float32, their sums in double.
double CrossEntropy(float *logits, int64_t n, int64_t label, bool gradient) {
  F16 top = Set(logits[0]);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) top = Max(top, Load(logits + i));
  float peak = MaxLane(top);
  for (; i < n; ++i) peak = logits[i] > peak ? logits[i] : peak;
  const float at_label = logits[label];
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = n - begin < 1024 ? n : begin + 1024;
    F16 part = {};
    for (i = begin; i + 16 <= end; i += 16) {
      const F16 e = Exp(Load(logits + i) - Set(peak));
      part += e;
      if (gradient) Store(logits + i, e);
    }
    if (const int left = static_cast<int>(end - i)) {
      const F16 e = Exp(LoadPart(logits + i, left) - Set(peak));
      for (int lane = 0; lane < left; ++lane) part[lane] += e[lane];
      if (gradient) StorePart(logits + i, e, left);
    }
    sum += Sum(part);
  }
  if (gradient) {
    const F16 scale = Set(static_cast<float>(1.0 / sum));
    for (i = 0; i + 16 <= n; i += 16) Store(logits + i, Load(logits + i) * scale);
    if (const int left = static_cast<int>(n - i)) StorePart(logits + i, LoadPart(logits + i, left) * scale, left);
    logits[label] -= 1.0f;
  }
  return std::log(sum) + (static_cast<double>(peak) - static_cast<double>(at_label));
}

const msms::GemmKernels kGemm = {kMr, kNr, PackPanels, GemmBlock, CrossEntropy};
