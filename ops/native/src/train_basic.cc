// Norms, rotation and activations of training; train_tokens.inl has embedding and dropout.
#include <cmath>

#include "train_args.h"

using namespace msms;

namespace {
struct NormData : AotKernelData {
  float eps = 0;
  bool bias = false, ok = false;
};
struct GeluData : AotKernelData {
  bool tanh = false, ok = false;
};
const TrainKernels &Train() { return *Active().train; }
using Shapes = std::vector<std::vector<int64_t>>;

// Rows of a norm whose x is input `x` and whose weight [h], the last axis of x, is input `w`; -1 for a wrong shape.
int64_t NormRows(const Args &a, int x, int w) {
  if (a.Rank(x) < 1 || a.Dim(w, 0) < 1 || a.Dim(x, a.Rank(x) - 1) != a.Dim(w, 0)) return -1;
  const int64_t size = Elements(a, x);
  return size < 0 ? -1 : size / a.Dim(w, 0);
}
}  // namespace

extern "C" int RmsNormGradInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new NormData;
  Attrs attrs(extra);
  d->eps = attrs.Float("eps");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
// (dy, x, w) -> (dx, dw): one pass over the rows makes both, and dw costs a hundredth of it.
extern "C" int RmsNormGrad(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<NormData>(extra);
  if (!a.Count(5)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(2, "float32", 1)) return kType;
  if (const int code = CheckAlike(a, 2)) return code;
  const int64_t rows = NormRows(a, 1, 2);
  if (rows < 0) return kShape;
  const int64_t h = a.Dim(2, 0);
  SumOverRows<1>(rows, h, {a.Out(4)}, [&](int64_t r, float **sums) {
    Train().rms_norm_grad(a.F(0) + r * h, a.F(1) + r * h, a.F(2), d->eps, h, a.Out(3) + r * h, sums[0]);
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER_SEVERAL(RmsNormGrad, 2, Shapes{Like(ndims, shapes, 1), Like(ndims, shapes, 2)})

extern "C" int LayerNormInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new NormData;
  Attrs attrs(extra);
  d->eps = attrs.Float("eps");
  d->bias = attrs.Int("bias") != 0;
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
// (x, w) or, with attribute bias, (x, w, b) -> y.
extern "C" int LayerNorm(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<NormData>(extra);
  if (!d || !d->ok) return kAttribute;
  const int inputs = d->bias ? 3 : 2;
  if (!a.Count(inputs + 1)) return kCount;
  if (!a.Is(0, "float32")) return kType;
  for (int i = 1; i < inputs; ++i)
    if (!a.Is(i, "float32", 1)) return kType;
  const int64_t rows = NormRows(a, 0, 1);
  if (rows < 0 || (d->bias && !a.Same(1, 2))) return kShape;
  const int64_t h = a.Dim(1, 0);
  const float *bias = d->bias ? a.F(2) : nullptr;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, std::max<int64_t>(1, kPiece / h), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) Train().layer_norm(a.F(0) + r * h, a.F(1), bias, d->eps, h, a.Out(inputs) + r * h);
  });
  return kOk;
}
MSMS_INFER(LayerNorm, Like(ndims, shapes, 0))

extern "C" int LayerNormGradInit(int *n, int64_t **s, const char **t, AotExtra *extra) { return LayerNormInit(n, s, t, extra); }
// (dy, x, w) -> (dx, dw), and db with attribute bias.
extern "C" int LayerNormGrad(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<NormData>(extra);
  if (!d || !d->ok) return kAttribute;
  if (!a.Count(d->bias ? 6 : 5)) return kCount;
  if (!a.Is(2, "float32", 1)) return kType;
  if (const int code = CheckAlike(a, 2)) return code;
  const int64_t rows = NormRows(a, 1, 2);
  if (rows < 0) return kShape;
  const int64_t h = a.Dim(2, 0);
  SumOverRows<2>(rows, h, {a.Out(4), d->bias ? a.Out(5) : nullptr}, [&](int64_t r, float **sums) {
    Train().layer_norm_grad(a.F(0) + r * h, a.F(1) + r * h, a.F(2), d->eps, h, a.Out(3) + r * h, sums[0], sums[1]);
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" Shapes LayerNormGradInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  Shapes out{Like(ndims, shapes, 1), Like(ndims, shapes, 2)};
  if (extra->HasAttr("bias") && extra->GetAttrInt("bias")) out.push_back(out[1]);
  return out;
}
extern "C" std::vector<int> LayerNormGradInferType(std::vector<int>, AotExtra *extra) {
  return std::vector<int>(extra->HasAttr("bias") && extra->GetAttrInt("bias") ? 3 : 2, kFloat32);
}

extern "C" int RopeGradInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// (dy [T, heads, D], table [T, D]) -> dx: the rotation by the opposite angle.
extern "C" int RopeGrad(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32", 3) || !a.Is(1, "float32", 2)) return kType;
  const int64_t rows = a.Dim(0, 0), heads = a.Dim(0, 1), dim = a.Dim(0, 2);
  if (a.Dim(1, 0) != rows || a.Dim(1, 1) != dim || dim % 2 || dim < 2 || Elements(a, 0) < 0) return kShape;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, heads * dim)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        Train().rope_grad(a.F(0) + (t * heads + h) * dim, a.F(1) + t * dim, dim, a.Out(2) + (t * heads + h) * dim);
  });
  return kOk;
}
MSMS_INFER(RopeGrad, Like(ndims, shapes, 0))

extern "C" int SwigluGradInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// (dy, gate, up) -> (dgate, dup).
extern "C" int SwigluGrad(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(5)) return kCount;
  if (const int code = CheckAlike(a, 3)) return code;
  ForElements(Elements(a, 0), [&](int64_t at, int64_t count) {
    Train().swiglu_grad(a.F(0) + at, a.F(1) + at, a.F(2) + at, a.Out(3) + at, a.Out(4) + at, count);
  });
  return kOk;
}
MSMS_INFER_SEVERAL(SwigluGrad, 2, Shapes{Like(ndims, shapes, 1), Like(ndims, shapes, 1)})

extern "C" int GeluInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new GeluData;
  Attrs attrs(extra);
  d->tanh = attrs.Int("tanh") != 0;
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int Gelu(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<GeluData>(extra);
  if (!a.Count(2)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (const int code = CheckAlike(a, 1)) return code;
  ForElements(Elements(a, 0), [&](int64_t at, int64_t count) { Train().gelu(a.F(0) + at, a.Out(1) + at, count, d->tanh); });
  return kOk;
}
MSMS_INFER(Gelu, Like(ndims, shapes, 0))

extern "C" int GeluGradInit(int *n, int64_t **s, const char **t, AotExtra *extra) { return GeluInit(n, s, t, extra); }
// (dy, x) -> dx.
extern "C" int GeluGrad(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<GeluData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (const int code = CheckAlike(a, 2)) return code;
  ForElements(Elements(a, 0), [&](int64_t at, int64_t count) {
    Train().gelu_grad(a.F(0) + at, a.F(1) + at, a.Out(2) + at, count, d->tanh);
  });
  return kOk;
}
MSMS_INFER(GeluGrad, Like(ndims, shapes, 1))

#include "train_tokens.inl"
