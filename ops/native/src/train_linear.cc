// Linear layers of training: y = x w^T + b and its gradients.
#include "args.h"
#include "gemm.h"

using namespace msms;

namespace {
constexpr int64_t kRowsAtOnce = 256;  // rows of one partial sum of a bias gradient
constexpr int64_t kColumnsAtOnce = 64;

// A tensor seen as a matrix: all dimensions but the last are its rows.
struct Matrix {
  int64_t rows = -1, columns = -1;
  bool ok = false;
  Matrix(const Args &a, int i) {
    if (a.Rank(i) < 1) return;
    rows = 1;
    columns = a.Dim(i, a.Rank(i) - 1);
    int64_t bytes = 4;
    for (int d = 0; d < a.Rank(i); ++d) {
      if (a.Dim(i, d) < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(1, a.Dim(i, d)), &bytes)) return;
      if (d + 1 < a.Rank(i)) rows *= a.Dim(i, d);
    }
    ok = true;
  }
  bool Is(int64_t r, int64_t c) const { return ok && rows == r && columns == c; }
};

int Run(const GemmArgs &g, const char *name = __builtin_FUNCTION()) try {
  Pool &pool = Pool::Get();
  auto lock = pool.Lock(name);
  Gemm(pool, g, reinterpret_cast<float *>(pool.Scratch(sizeof(float) * static_cast<size_t>(GemmScratch(g, pool.threads())))));
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}

int Forward(const Args &a, const float *bias, int out, const char *name = __builtin_FUNCTION()) {
  if (!a.Is(0, "float32") || !a.Is(1, "float32", 2) || !a.Is(out, "float32")) return kType;
  const Matrix x(a, 0), w(a, 1), y(a, out);
  if (!x.ok || !w.ok || x.columns != w.columns || !y.Is(x.rows, w.rows)) return kShape;
  GemmArgs g;
  g.m = x.rows, g.n = w.rows, g.k = x.columns;
  g.a = a.F(0), g.lda = x.columns;
  g.b = a.F(1), g.ldb = w.columns, g.b_transposed = true;
  g.c = a.Out(out), g.ldc = w.rows;
  g.bias = bias;
  return Run(g, name);
}

// The shape of input `i` with another last dimension.
std::vector<int64_t> WithColumns(const int *ndims, int64_t **shapes, int i, int64_t columns) {
  std::vector<int64_t> shape = Like(ndims, shapes, i);
  if (!shape.empty()) shape.back() = columns;
  return shape;
}
}  // namespace

extern "C" int DenseInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// x [..., K], w [N, K] -> [..., N].
extern "C" int Dense(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  return a.Count(3) ? Forward(a, nullptr, 2) : kCount;
}
MSMS_INFER(Dense, WithColumns(ndims, shapes, 0, DimOf(ndims, shapes, 1, 0)))

extern "C" int DenseBiasInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// x [..., K], w [N, K], b [N] -> [..., N].
extern "C" int DenseBias(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(4)) return kCount;
  if (!a.Is(1, "float32", 2) || !a.Is(2, "float32", 1)) return kType;
  if (a.Dim(2, 0) != a.Dim(1, 0)) return kShape;
  return Forward(a, a.F(2), 3);
}
MSMS_INFER(DenseBias, WithColumns(ndims, shapes, 0, DimOf(ndims, shapes, 1, 0)))

extern "C" int DenseGradInputInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// dy [..., N], w [N, K] -> [..., K].
extern "C" int DenseGradInput(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32") || !a.Is(1, "float32", 2) || !a.Is(2, "float32")) return kType;
  const Matrix dy(a, 0), w(a, 1), dx(a, 2);
  if (!dy.ok || !w.ok || dy.columns != w.rows || !dx.Is(dy.rows, w.columns)) return kShape;
  GemmArgs g;
  g.m = dy.rows, g.n = w.columns, g.k = w.rows;
  g.a = a.F(0), g.lda = dy.columns;
  g.b = a.F(1), g.ldb = w.columns;
  g.c = a.Out(2), g.ldc = w.columns;
  return Run(g);
}
MSMS_INFER(DenseGradInput, WithColumns(ndims, shapes, 0, DimOf(ndims, shapes, 1, 1)))

extern "C" int DenseGradWeightInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// dy [..., N], x [..., K] -> [N, K].
extern "C" int DenseGradWeight(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32") || !a.Is(1, "float32") || !a.Is(2, "float32", 2)) return kType;
  const Matrix dy(a, 0), x(a, 1), dw(a, 2);
  if (!dy.ok || !x.ok || dy.rows != x.rows || !dw.Is(dy.columns, x.columns)) return kShape;
  GemmArgs g;
  g.m = dy.columns, g.n = x.columns, g.k = dy.rows;
  g.a = a.F(0), g.lda = dy.columns, g.a_transposed = true;
  g.b = a.F(1), g.ldb = x.columns;
  g.c = a.Out(2), g.ldc = x.columns;
  return Run(g);
}
extern "C" std::vector<int64_t> DenseGradWeightInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {ndims[0] > 0 ? shapes[0][ndims[0] - 1] : 0, ndims[1] > 0 ? shapes[1][ndims[1] - 1] : 0};
}
extern "C" int DenseGradWeightInferType(std::vector<int>, AotExtra *) { return kFloat32; }

extern "C" int DenseGradBiasInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// dy [..., N] -> [N].
extern "C" int DenseGradBias(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(2)) return kCount;
  if (!a.Is(0, "float32") || !a.Is(1, "float32", 1)) return kType;
  const Matrix dy(a, 0);
  if (!dy.ok || a.Dim(1, 0) != dy.columns) return kShape;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(dy.columns, kColumnsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; j += kColumnsAtOnce) {
      const int64_t columns = std::min(end - j, kColumnsAtOnce);
      float total[kColumnsAtOnce] = {};
      for (int64_t r = 0; r < dy.rows; r += kRowsAtOnce) {
        float part[kColumnsAtOnce] = {};
        for (int64_t i = r; i < std::min(dy.rows, r + kRowsAtOnce); ++i)
          for (int64_t c = 0; c < columns; ++c) part[c] += a.F(0)[i * dy.columns + j + c];
        for (int64_t c = 0; c < columns; ++c) total[c] += part[c];
      }
      std::memcpy(a.Out(1) + j, total, static_cast<size_t>(columns) * 4);
    }
  });
  return kOk;
}
extern "C" std::vector<int64_t> DenseGradBiasInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {ndims[0] > 0 ? shapes[0][ndims[0] - 1] : 0};
}
extern "C" int DenseGradBiasInferType(std::vector<int>, AotExtra *) { return kFloat32; }
