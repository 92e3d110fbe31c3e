// The training kernels under the address and undefined-behaviour sanitizers: every buffer is as long as its shape says
// and not a float longer, sizes fill no tile, and the bits are those of one thread. Right values are in tests/ops.
#include <cmath>
#include <cstdio>
#include <random>

#include "../src/args.h"
#include "fake_extra.h"

#define ENTRY(name)                                                                   \
  extern "C" int name(int, void **, int *, int64_t **, const char **, void *, void *); \
  extern "C" int name##Init(int *, int64_t **, const char **, AotExtra *);
ENTRY(Dense) ENTRY(DenseBias) ENTRY(DenseGradInput) ENTRY(DenseGradWeight) ENTRY(DenseGradBias)
ENTRY(LinearCrossEntropy) ENTRY(LinearCrossEntropyGradInput) ENTRY(LinearCrossEntropyGrad) ENTRY(ScaleInPlace)
ENTRY(FlashAttention) ENTRY(FlashAttentionGrad) ENTRY(RmsNormGrad) ENTRY(LayerNorm) ENTRY(LayerNormGrad) ENTRY(RopeGrad)
ENTRY(SwigluGrad) ENTRY(Gelu) ENTRY(GeluGrad) ENTRY(TokenEmbedding) ENTRY(TokenEmbeddingGrad) ENTRY(Dropout)
ENTRY(AdamW) ENTRY(Lion) ENTRY(Sgd) ENTRY(SgdMomentum) ENTRY(Adafactor) ENTRY(SumSquares) ENTRY(Accumulate)
extern "C" int MsmsSetIsa(const char *);
extern "C" const char *MsmsIsa();
extern "C" void MsmsSetThreads(int);

namespace {
using Shape = std::vector<int64_t>;
using Entry = int (*)(int, void **, int *, int64_t **, const char **, void *, void *);
using Start = int (*)(int *, int64_t **, const char **, AotExtra *);
std::mt19937 rng(11);
int failures = 0, checks = 0;

// A float tensor that begins with drawn values, or an int one with given values.
struct Tensor {
  Shape shape;
  std::vector<float> floats;
  std::vector<int32_t> ints;
  std::vector<double> doubles;
};
int64_t Size(const Shape &shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}
Tensor F(Shape shape) {
  Tensor t{shape, std::vector<float>(static_cast<size_t>(Size(shape))), {}, {}};
  for (float &x : t.floats) x = std::normal_distribution<float>()(rng);
  return t;
}
Tensor I(Shape shape, std::vector<int32_t> values) { return {std::move(shape), {}, std::move(values), {}}; }
Tensor D(std::vector<double> values) { return {{static_cast<int64_t>(values.size())}, {}, {}, std::move(values)}; }

// Runs an operator on copies with one thread and with three; all of its tensors have to end with the same bits.
void Same(const char *name, Entry entry, Start start, FakeExtra *extra, const std::vector<Tensor> &tensors) {
  std::vector<Tensor> first;
  start(nullptr, nullptr, nullptr, extra);
  for (int threads : {1, 3}) {
    MsmsSetThreads(threads);
    std::vector<Tensor> now = tensors;
    Call call;
    for (Tensor &t : now) {
      if (!t.ints.empty()) call.Add(t.ints.data(), t.shape, "int32");
      else if (!t.doubles.empty()) call.Add(t.doubles.data(), t.shape, "float64");
      else call.Add(t.floats.data(), t.shape, "float32");
    }
    const int code = call.Run(entry, extra);
    bool ok = code == 0;
    for (size_t i = 0; ok && i < now.size(); ++i) {
      for (float x : now[i].floats) ok = ok && std::isfinite(x);
      if (!first.empty()) ok = ok && now[i].floats == first[i].floats;
    }
    first = now;
    ++checks;
    if (!ok) ++failures, std::printf("FAILED [%s] %s with %d threads, code %d\n", MsmsIsa(), name, threads, code);
  }
}
#define SAME(name, extra, ...) Same(#name, name, name##Init, extra, {__VA_ARGS__})

void Linear(int64_t m, int64_t n, int64_t k) {
  FakeExtra none;
  SAME(Dense, &none, F({m, k}), F({n, k}), F({m, n}));
  SAME(DenseBias, &none, F({m, k}), F({n, k}), F({n}), F({m, n}));
  SAME(DenseGradInput, &none, F({m, n}), F({n, k}), F({m, k}));
  SAME(DenseGradWeight, &none, F({m, n}), F({m, k}), F({n, k}));
  SAME(DenseGradBias, &none, F({m, n}), F({n}));
}

void Loss(int64_t m, int64_t v, int64_t h) {
  FakeExtra extra;
  extra.ints["ignore_index"] = -100;
  std::vector<int32_t> labels(static_cast<size_t>(m));
  for (auto &label : labels) label = rng() % 4 ? static_cast<int32_t>(rng() % static_cast<uint32_t>(v)) : -100;
  SAME(LinearCrossEntropy, &extra, F({m, h}), F({v, h}), I({m}, labels), F({1}), F({m}));
  SAME(LinearCrossEntropyGradInput, &extra, F({m, h}), F({v, h}), I({m}, labels), F({1}), F({m}), F({m, h}));
  SAME(LinearCrossEntropyGrad, &extra, F({m, h}), F({v, h}), I({m}, labels), F({1}), F({m}), F({m, h}), F({v, h}));
  SAME(ScaleInPlace, &extra, F({m, h}), F({1}), F({1}));
}

void Flash(int64_t b, int64_t t, int64_t heads, int64_t kv, int64_t d, float dropout, bool documents) {
  FakeExtra extra;
  extra.floats["scale"] = 1.0f / std::sqrt(static_cast<float>(d));
  extra.floats["dropout"] = dropout;
  std::vector<int32_t> starts(static_cast<size_t>(documents ? b * t : 1));
  if (documents)
    for (int64_t i = 0; i < b * t; ++i) starts[static_cast<size_t>(i)] = static_cast<int32_t>(i % t / 19 * 19);
  const Tensor q = F({b, t, heads, d}), k = F({b, t, kv, d}), v = F({b, t, kv, d}), seed = I({2}, {5, 9});
  const Tensor first = I(documents ? Shape{b, t} : Shape{1}, starts);
  SAME(FlashAttention, &extra, q, k, v, first, seed, F({b, t, heads, d}), F({b, heads, t}));
  Tensor lse = F({b, heads, t});
  for (float &x : lse.floats) x = 6.0f;
  SAME(FlashAttentionGrad, &extra, F({b, t, heads, d}), q, k, v, q, lse, first, seed, F({b, t, heads, d}), F({b, t, kv, d}), F({b, t, kv, d}));
}

void Rows(int64_t rows, int64_t h) {
  FakeExtra extra;
  extra.floats["eps"] = 1e-5f;
  extra.ints["bias"] = 1;
  extra.ints["tanh"] = 1;
  SAME(RmsNormGrad, &extra, F({rows, h}), F({rows, h}), F({h}), F({rows, h}), F({h}));
  SAME(LayerNorm, &extra, F({rows, h}), F({h}), F({h}), F({rows, h}));
  SAME(LayerNormGrad, &extra, F({rows, h}), F({rows, h}), F({h}), F({rows, h}), F({h}), F({h}));
  SAME(SwigluGrad, &extra, F({rows, h}), F({rows, h}), F({rows, h}), F({rows, h}), F({rows, h}));
  SAME(RopeGrad, &extra, F({rows, 3, 34}), F({rows, 34}), F({rows, 3, 34}));
  for (int tanh : {0, 1}) {
    extra.ints["tanh"] = tanh;
    SAME(Gelu, &extra, F({rows, h}), F({rows, h}));
    SAME(GeluGrad, &extra, F({rows, h}), F({rows, h}), F({rows, h}));
  }
}

void Tokens(int64_t rows, int64_t v, int64_t h) {
  FakeExtra extra;
  extra.ints["vocabulary"] = v;
  extra.floats["p"] = 0.3f;
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  for (auto &id : ids) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(v));
  SAME(TokenEmbedding, &extra, I({rows}, ids), F({v, h}), F({rows, h}));
  SAME(TokenEmbeddingGrad, &extra, F({rows, h}), I({rows}, ids), F({v, h}));
  SAME(Dropout, &extra, F({rows, h}), I({2}, {1, 2}), F({rows, h}));
}

void Optimizers(int64_t rows, int64_t width) {
  FakeExtra extra;
  extra.lists["decay"] = {1, 0};
  extra.ints["decoupled"] = 1;
  extra.ints["nesterov"] = 0;
  extra.ints["count"] = 2;
  const Shape a = {rows, width}, b = {width};
  Tensor control = F({2}), keep = F({1}), va = F(a), vb = F(b);
  control.floats = {0.5f, 0.0f};
  for (float &x : va.floats) x *= x;
  for (float &x : vb.floats) x *= x;
  SAME(AdamW, &extra, F(a), F(b), F(a), F(b), va, vb, F(a), F(b), D({1e-3, 0.9, 0.999, 1e-8, 0.1, 3}), control, F({1}));
  SAME(Lion, &extra, F(a), F(b), F(a), F(b), F(a), F(b), D({1e-3, 0.9, 0.99, 0.1}), control, F({1}));
  SAME(Sgd, &extra, F(a), F(b), F(a), F(b), D({1e-3, 0, 0, 0.1, 2}), control, F({1}));
  SAME(SgdMomentum, &extra, F(a), F(b), F(a), F(b), F(a), F(b), D({1e-3, 0.9, 0, 0.1, 2}), control, F({1}));
  Tensor row = F({rows}), column = F({width});
  for (float &x : row.floats) x *= x;
  for (float &x : column.floats) x *= x;
  SAME(Adafactor, &extra, F(a), F(b), row, vb, column, F({1}), F(a), F(b), D({1e-3, -0.8, 1e-10, 1e-3, 1, 0.1, 2}), control, F({1}));
  SAME(SumSquares, &extra, F(a), F(b), F({2}));
  SAME(Accumulate, &extra, F(a), F(b), F(a), F(b), keep, F({1}));
}
}  // namespace

int main() {
  for (const char *isa : {"portable", "avx2", "avx512"}) {
    if (MsmsSetIsa(isa) != 0) continue;
    const int before = checks;
    Linear(1, 1, 1), Linear(37, 71, 45), Linear(130, 33, 300);
    Loss(1, 2, 1), Loss(70, 301, 35);
    Flash(1, 1, 1, 1, 2, 0.0f, false), Flash(2, 67, 4, 2, 34, 0.1f, true), Flash(1, 130, 3, 3, 64, 0.0f, false), Flash(1, 65, 2, 1, 128, 0.0f, true);
    Rows(1, 1), Rows(67, 75);
    Tokens(1, 1, 1), Tokens(90, 17, 35);
    Optimizers(1, 1), Optimizers(67, 301);
    std::printf("%s: %d checks of training kernels\n", isa, checks - before);
  }
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures ? 1 : 0;
}
