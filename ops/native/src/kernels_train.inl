// Norms, rotation, activations, dropout and their gradients. Part of kernels.inl.
namespace train {
#include "train_simd.inl"

void RmsNormGrad(const float *dy, const float *x, const float *w, float eps, int64_t h, float *dx, float *dw) {
  Sums squares, products;
  ForSums(h, [&](int64_t i, auto n, auto slot) {
    const V u = Get(x + i, n);
    squares.of[slot] = Fma(u, u, squares.of[slot]);
    products.of[slot] = Fma(u, Get(dy + i, n) * Get(w + i, n), products.of[slot]);
  });
  const float inverse = 1.0f / std::sqrt(squares.Total() / static_cast<float>(h) + eps);
  const float mean = products.Total() * inverse / static_cast<float>(h);
  const V scale = All(inverse), pull = All(-mean * inverse);
  ForVectors(h, [&](int64_t i, auto n) {
    const V normal = Get(x + i, n) * scale, d = Get(dy + i, n);
    Put(dx + i, Fma(normal, pull, d * Get(w + i, n) * scale), n);
    AddTo(dw + i, d * normal, n);
  });
}

struct Moments {
  float mean, inverse;
};
// The variance of what is left after the mean: one pass over x^2 would lose it where the mean is large.
inline Moments MomentsOf(const float *x, float eps, int64_t h) {
  Sums sum, squares;
  ForSums(h, [&](int64_t i, auto n, auto slot) { sum.of[slot] += Get(x + i, n); });
  const float mean = sum.Total() / static_cast<float>(h);
  ForSums(h, [&](int64_t i, auto n, auto slot) {
    const V u = First(Get(x + i, n) - All(mean), n);
    squares.of[slot] = Fma(u, u, squares.of[slot]);
  });
  return {mean, 1.0f / std::sqrt(squares.Total() / static_cast<float>(h) + eps)};
}

void LayerNorm(const float *x, const float *w, const float *b, float eps, int64_t h, float *y) {
  const Moments of = MomentsOf(x, eps, h);
  const V mean = All(of.mean), scale = All(of.inverse);
  ForVectors(h, [&](int64_t i, auto n) {
    const V v = (Get(x + i, n) - mean) * scale * Get(w + i, n);
    Put(y + i, b ? v + Get(b + i, n) : v, n);
  });
}

void LayerNormGrad(const float *dy, const float *x, const float *w, float eps, int64_t h, float *dx, float *dw, float *db) {
  const Moments of = MomentsOf(x, eps, h);
  const V mean = All(of.mean), scale = All(of.inverse);
  Sums sums, products;
  ForSums(h, [&](int64_t i, auto n, auto slot) {
    const V g = Get(dy + i, n) * Get(w + i, n);
    sums.of[slot] += g;
    products.of[slot] = Fma(g, (Get(x + i, n) - mean) * scale, products.of[slot]);
  });
  const V offset = All(sums.Total() / static_cast<float>(h)), pull = All(-products.Total() / static_cast<float>(h));
  ForVectors(h, [&](int64_t i, auto n) {
    const V normal = (Get(x + i, n) - mean) * scale, d = Get(dy + i, n);
    Put(dx + i, Fma(normal, pull, d * Get(w + i, n) - offset) * scale, n);
    AddTo(dw + i, d * normal, n);
    if (db) AddTo(db + i, d, n);
  });
}

void RopeGrad(const float *dy, const float *table, int64_t dim, float *dx) {
  const int64_t half = dim / 2;
  ForVectors(half, [&](int64_t i, auto n) {
    const V a = Get(dy + i, n), b = Get(dy + half + i, n), cos = Get(table + i, n), sin = Get(table + half + i, n);
    Put(dx + i, a * cos + b * sin, n);
    Put(dx + half + i, b * cos - a * sin, n);
  });
}

void SwigluGrad(const float *dy, const float *gate, const float *up, float *dgate, float *dup, int64_t size) {
  const V one = All(1.0f);
  ForVectors(size, [&](int64_t i, auto n) {
    const V g = Get(gate + i, n), d = Get(dy + i, n), sigmoid = one / (one + Exp(-g));
    Put(dup + i, d * g * sigmoid, n);
    Put(dgate + i, d * Get(up + i, n) * (sigmoid * Fma(g, one - sigmoid, one)), n);
  });
}

// Both forms as x * share(x), with the derivative of share. Exact: the share is the normal distribution function, from
// the error function's rational form (Abramowitz and Stegun 7.1.26, error 1.5e-7), which needs the density anyway.
struct Share {
  V value, slope;
};
template <bool kTanh>
inline Share GeluShare(V x) {
  const V one = All(1.0f);
  if (kTanh) {
    // Beyond +-20 the share is 0 or 1; the operand order keeps a NaN.
    const V c = Min(All(20.0f), Max(All(-20.0f), x)), square = c * c;
    const V u = c * Fma(square, All(0.07135481282f), All(1.595769122f));
    const V share = one / (one + Exp(-u));
    return {share, share * (one - share) * Fma(square, All(0.2140644385f), All(1.595769122f))};
  }
  const V z = Abs(x) * All(0.70710678118f), density = Exp(x * x * All(-0.5f));
  const V t = one / Fma(z, All(0.3275911f), one);
  V p = Fma(t, All(1.061405429f), All(-1.453152027f));
  p = Fma(t, p, All(1.421413741f));
  p = Fma(t, p, All(-0.284496736f));
  p = Fma(t, p, All(0.254829592f)) * t * density * All(0.5f);
  const VI negative = x < All(0.0f);
  const V upper = one - p;
  return {(V)(((VI)p & negative) | ((VI)upper & ~negative)), density * All(0.39894228040f)};
}
template <bool kTanh>
inline void GeluAs(const float *x, float *y, int64_t size) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V v = Get(x + i, n);
    Put(y + i, v * GeluShare<kTanh>(v).value, n);
  });
}
template <bool kTanh>
inline void GeluGradAs(const float *dy, const float *x, float *dx, int64_t size) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V v = Get(x + i, n);
    const Share share = GeluShare<kTanh>(v);
    Put(dx + i, Get(dy + i, n) * Fma(v, share.slope, share.value), n);
  });
}
void Gelu(const float *x, float *y, int64_t n, bool tanh) { tanh ? GeluAs<true>(x, y, n) : GeluAs<false>(x, y, n); }
void GeluGrad(const float *dy, const float *x, float *dx, int64_t n, bool tanh) {
  tanh ? GeluGradAs<true>(dy, x, dx, n) : GeluGradAs<false>(dy, x, dx, n);
}

// 24 random bits for each element from its number and the seed, nothing stored: two rounds of a 32-bit mixer under
// two keys, which are the seed's 64 bits mixed (splitmix64), so that neighbouring seeds have nothing in common.
inline VI Draw(const int32_t *seed, uint64_t first) {
  uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(seed[1])) << 32 | static_cast<uint32_t>(seed[0]);
  key += (first >> 32) * 0x9e3779b97f4a7c15u;
  key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
  key = (key ^ key >> 27) * 0x94d049bb133111ebu;
  key ^= key >> 31;
  VU h;
  for (int i = 0; i < kWidth; ++i) h[i] = static_cast<uint32_t>(i);
  h += static_cast<uint32_t>(first);
  for (int round = 0; round < 2; ++round) {
    h += static_cast<uint32_t>(key >> (32 * round));
    h ^= h >> 16;
    h *= 0x21f0aaadu;
    h ^= h >> 15;
    h *= 0xd35a2d97u;
    h ^= h >> 15;
  }
  return (VI)(h >> 8);
}

void Dropout(const float *x, const int32_t *seed, int64_t first, int64_t size, int32_t threshold, float scale, float *y) {
  ForVectors(size, [&](int64_t i, auto n) {
    const VI kept = Draw(seed, static_cast<uint64_t>(first + i)) >= threshold;
    Put(y + i, (V)((VI)(Get(x + i, n) * All(scale)) & kept), n);
  });
}

// Sums of up to 16 rows are added to each other, so that a token seen thousands of times keeps its last digits.
void AddRows(const float *rows, const int32_t *order, int64_t count, int64_t h, float *sum, float *spare) {
  for (int64_t begin = 0; begin < count; begin += 16) {
    const int64_t end = begin + 16 < count ? begin + 16 : count;
    float *to = begin ? spare : sum;
    for (int64_t r = begin; r < end; ++r) {
      const float *row = rows + order[r] * h;
      if (r == begin) std::memcpy(to, row, static_cast<size_t>(h) * 4);
      else ForVectors(h, [&](int64_t i, auto n) { AddTo(to + i, Get(row + i, n), n); });
    }
    if (begin) ForVectors(h, [&](int64_t i, auto n) { AddTo(sum + i, Get(spare + i, n), n); });
  }
}

#include "kernels_optimizer.inl"

const msms::TrainKernels kTrain = {RmsNormGrad, LayerNorm, LayerNormGrad, RopeGrad, SwigluGrad, Gelu, GeluGrad, Dropout, AddRows, AdamW, Lion,
                             Sgd, SumSquares, Accumulate, AddSquares, LerpSquare, AdafactorNorm, Adafactor};
}  // namespace train
using train::kTrain;
