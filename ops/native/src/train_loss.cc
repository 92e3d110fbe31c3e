// Linear layer and cross entropy in one, some rows at a time: the logits of all rows are never there together.
#include <cmath>

#include "args.h"
#include "gemm.h"

using namespace msms;

namespace {
constexpr int64_t kLogits = 2 << 20;  // floats of logits at a time
constexpr int64_t kFewestRows = 128;  // fewer would make packing the weights dear
constexpr int64_t kSmall = 1 << 14;   // elements below which waking another thread costs more than it gains

struct LossData : AotKernelData {
  int64_t ignore = 0;
  bool ok = false;
};

int Init(AotExtra *extra) {
  auto *d = new LossData;
  Attrs attrs(extra);
  d->ignore = attrs.Int("ignore_index");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}

// x [M, H], w [V, H], labels [M] -> loss [1], token_losses [M], and where wanted dx [M, H], dw [V, H].
struct Problem {
  int64_t m, v, h, ignore;
  const float *x, *w;
  const int32_t *labels;
  float *loss, *token_losses, *dx, *dw;
};

// Copies rows between a matrix and a block, `rows` naming the matrix's.
void Gather(Pool &pool, const int64_t *rows, int64_t count, int64_t h, const float *matrix, float *block) {
  pool.For(count, std::max<int64_t>(1, kSmall / h), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(block + i * h, matrix + rows[i] * h, static_cast<size_t>(h) * 4);
  });
}
void Scatter(Pool &pool, const int64_t *rows, int64_t count, int64_t h, const float *block, float *matrix) {
  pool.For(count, std::max<int64_t>(1, kSmall / h), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(matrix + rows[i] * h, block + i * h, static_cast<size_t>(h) * 4);
  });
}

int Solve(const Problem &p, const char *name) {
  std::vector<int64_t> rows;  // those that count
  for (int64_t r = 0; r < p.m; ++r) {
    if (p.labels[r] == p.ignore) continue;
    if (p.labels[r] < 0 || p.labels[r] >= p.v) return kToken;
    rows.push_back(r);
  }
  Pool &pool = Pool::Get();
  auto lock = pool.Lock(name);
  const int64_t active = static_cast<int64_t>(rows.size()), threads = pool.threads();
  const bool gathered = active < p.m;
  std::memset(p.token_losses, 0, static_cast<size_t>(p.m) * 4);
  if (p.dx && gathered) std::memset(p.dx, 0, static_cast<size_t>(p.m * p.h) * 4);
  if (p.dw && !active) std::memset(p.dw, 0, static_cast<size_t>(p.v * p.h) * 4);
  if (!active) {
    *p.loss = 0;
    return kOk;
  }
  const int64_t most = std::max(kFewestRows, kLogits / p.v), chunks = (active + most - 1) / most;
  const int64_t chunk = (active + chunks - 1) / chunks;

  GemmArgs logits, grad_x, grad_w;
  logits.m = chunk, logits.n = p.v, logits.k = p.h;
  logits.b = p.w, logits.ldb = p.h, logits.b_transposed = true;
  logits.lda = p.h, logits.ldc = p.v;
  grad_x.m = chunk, grad_x.n = p.h, grad_x.k = p.v;
  grad_x.lda = p.v;
  grad_x.b = p.w, grad_x.ldb = p.h;
  grad_x.ldc = p.h;
  grad_w.m = p.v, grad_w.n = p.h, grad_w.k = chunk;
  grad_w.lda = p.v, grad_w.a_transposed = true;
  grad_w.ldb = p.h;
  grad_w.c = p.dw, grad_w.ldc = p.h;
  int64_t packed = GemmScratch(logits, threads);
  if (p.dx) packed = std::max(packed, GemmScratch(grad_x, threads));
  // the last chunk may be of another depth
  for (int64_t left = active; p.dw && left > 0; left -= chunk) {
    grad_w.k = std::min(chunk, left);
    packed = std::max(packed, GemmScratch(grad_w, threads));
  }
  uint8_t *base = nullptr;
  float *block = nullptr, *spare = nullptr, *inputs = nullptr, *outputs = nullptr;
  double *losses = nullptr;
  for (int pass = 0; pass < 2; ++pass) {
    Carver carver(base);
    block = carver.Take<float>(chunk * p.v);
    spare = carver.Take<float>(packed);
    inputs = carver.Take<float>(gathered ? chunk * p.h : 0);
    outputs = carver.Take<float>(gathered && p.dx ? chunk * p.h : 0);
    losses = carver.Take<double>(active);
    if (pass == 0) base = pool.Scratch(carver.used());
  }

  for (int64_t start = 0; start < active; start += chunk) {
    const int64_t count = std::min(chunk, active - start);
    const float *x = p.x + start * p.h;
    if (gathered) Gather(pool, rows.data() + start, count, p.h, p.x, inputs), x = inputs;
    logits.m = count, logits.a = x, logits.c = block;
    Gemm(pool, logits, spare);
    pool.For(count, std::max<int64_t>(1, kSmall / p.v), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        losses[start + i] = Active().gemm->cross_entropy(block + i * p.v, p.v, p.labels[rows[start + i]], p.dx != nullptr);
    });
    if (p.dx) {
      grad_x.m = count, grad_x.a = block, grad_x.c = gathered ? outputs : p.dx + start * p.h;
      Gemm(pool, grad_x, spare);
      if (gathered) Scatter(pool, rows.data() + start, count, p.h, outputs, p.dx);
    }
    if (p.dw) {
      grad_w.k = count, grad_w.a = block, grad_w.b = x, grad_w.add = start > 0;
      Gemm(pool, grad_w, spare);
    }
  }
  double sum = 0;
  for (int64_t i = 0; i < active; ++i) {
    p.token_losses[rows[i]] = static_cast<float>(losses[i]);
    sum += losses[i];
  }
  *p.loss = static_cast<float>(sum);
  return kOk;
}

int Run(const Args &a, const LossData *d, int inputs_and_outputs, bool grad_x, bool grad_w, const char *name = __builtin_FUNCTION()) try {
  if (!a.Count(inputs_and_outputs)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32", 2) || !a.Is(1, "float32", 2) || !a.Is(2, "int32", 1)) return kType;
  for (int i = 3; i < inputs_and_outputs; ++i)
    if (!a.Is(i, "float32", i < 5 ? 1 : 2)) return kType;
  const int64_t m = a.Dim(0, 0), h = a.Dim(0, 1), v = a.Dim(1, 0);
  if (a.Dim(1, 1) != h || a.Dim(2, 0) != m || h < 1 || v < 1 || m < 0 || h > kMaxDim || v > kMaxDim || m > kMaxDim) return kShape;
  if (a.Dim(3, 0) != 1 || a.Dim(4, 0) != m || (grad_x && !a.Same(5, 0)) || (grad_w && !a.Same(6, 1))) return kShape;
  return Solve({m, v, h, d->ignore, a.F(0), a.F(1), a.I(2), a.Out(3), a.Out(4), grad_x ? a.Out(5) : nullptr, grad_w ? a.Out(6) : nullptr}, name);
} catch (const std::bad_alloc &) {
  return kMemory;
}

std::vector<std::vector<int64_t>> Shapes(const int *ndims, int64_t **shapes, int gradients) {
  std::vector<std::vector<int64_t>> all = {{1}, {DimOf(ndims, shapes, 0, 0)}};
  for (int i = 0; i < gradients; ++i) all.push_back(Like(ndims, shapes, i));
  return all;
}
}  // namespace

#define MSMS_LOSS(name, gradients)                                                                                          \
  extern "C" int name##Init(int *, int64_t **, const char **, AotExtra *extra) { return Init(extra); }                      \
  extern "C" int name(MSMS_PARAMS) {                                                                                        \
    return Run(Args(n, data, ndims, shapes, types), Data<LossData>(extra), 5 + gradients, gradients > 0, gradients > 1);    \
  }                                                                                                                         \
  extern "C" std::vector<std::vector<int64_t>> name##InferShape(int *ndims, int64_t **shapes, AotExtra *) {                 \
    return Shapes(ndims, shapes, gradients);                                                                                \
  }                                                                                                                         \
  extern "C" std::vector<int> name##InferType(std::vector<int>, AotExtra *) { return std::vector<int>(2 + gradients, kFloat32); }
// The losses alone; with the gradient of x; with those of x and w, all for a gradient of 1 of the sum.
MSMS_LOSS(LinearCrossEntropy, 0)
MSMS_LOSS(LinearCrossEntropyGradInput, 1)
MSMS_LOSS(LinearCrossEntropyGrad, 2)

extern "C" int ScaleInPlaceInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// x (any shape) is multiplied by s [1]; the output [1] is there to be waited for. By 1 costs nothing.
extern "C" int ScaleInPlace(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32") || !a.Is(1, "float32", 1) || !a.Is(2, "float32", 1)) return kType;
  if (a.Dim(1, 0) != 1 || a.Dim(2, 0) != 1) return kShape;
  const float scale = a.F(1)[0];
  *a.Out(2) = scale;
  if (scale == 1.0f) return kOk;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(a.Size(0), kSmall, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) a.Out(0)[i] *= scale;
  });
  return kOk;
}
MSMS_INFER(ScaleInPlace, {1})
