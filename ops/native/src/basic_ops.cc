// Norm, rope, activation, embedding, linear and output layer as operators of their own.
#include <cmath>

#include "linear.h"

using namespace msms;

namespace {
constexpr int64_t kSmall = 1 << 14;  // elements below which waking another thread costs more than it gains
constexpr int64_t kLargestPosition = int64_t{1} << 24;  // far past any context: what lies beyond is garbage

struct NormData : AotKernelData {
  float eps = 0;
  bool ok = false;
};
struct TableData : AotKernelData {
  int64_t offset = 0, dim = 0;
  bool ok = false;
};
struct LinearData : AotKernelData {
  Weight w;
  int64_t bias = -1;
  bool ok = false;
};
struct HeadData : AotKernelData {
  Weight w;
  int64_t bias = -1, norm = 0;
  float eps = 0;
  bool ok = false;
};
}  // namespace

extern "C" int RmsNormInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new NormData;
  Attrs attrs(extra);
  d->eps = attrs.Float("eps");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int RmsNorm(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<NormData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32") || !a.Is(1, "float32", 1)) return kType;
  if (a.Rank(0) < 1 || a.Dim(0, a.Rank(0) - 1) != a.Dim(1, 0) || a.Dim(1, 0) < 1) return kShape;
  const int64_t h = a.Dim(1, 0), rows = a.Size(0) / h;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, std::max<int64_t>(1, kSmall / h), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) Active().rms_norm(a.F(0) + r * h, a.F(1), d->eps, h, a.Out(2) + r * h);
  });
  return kOk;
}
MSMS_INFER(RmsNorm, Like(ndims, shapes, 0))

extern "C" int RopeTableInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new TableData;
  Attrs attrs(extra);
  d->offset = attrs.Int("inv_freq");
  d->dim = attrs.Int("head_dim");
  d->ok = attrs.ok && d->dim >= 2 && d->dim <= 1024 && d->dim % 2 == 0;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int RopeTable(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<TableData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "int32", 1) || !a.Is(1, "uint8", 1)) return kType;
  const int64_t half = d->dim / 2, rows = a.Dim(0, 0);
  if (!VectorFits(d->offset, half, a.Dim(1, 0))) return kArena;
  for (int64_t t = 0; t < rows; ++t)
    if (a.I(0)[t] < 0 || a.I(0)[t] >= kLargestPosition) return kPosition;
  const float *freq = Vector(a.Bytes(1), d->offset);
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float *row = a.Out(2) + t * d->dim;
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(a.I(0)[t]) * freq[i];
        row[i] = static_cast<float>(std::cos(angle));
        row[half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
  return kOk;
}
extern "C" std::vector<int64_t> RopeTableInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  return {DimOf(ndims, shapes, 0, 0), extra->GetAttrInt("head_dim")};
}
extern "C" int RopeTableInferType(std::vector<int>, AotExtra *) { return kFloat32; }

extern "C" int RopeInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
extern "C" int Rope(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32", 3) || !a.Is(1, "float32", 2)) return kType;
  const int64_t rows = a.Dim(0, 0), heads = a.Dim(0, 1), dim = a.Dim(0, 2);
  if (a.Dim(1, 0) != rows || a.Dim(1, 1) != dim || dim % 2 || dim < 2) return kShape;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, std::max<int64_t>(1, kSmall / std::max<int64_t>(1, heads * dim)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        Active().rope(a.F(0) + (t * heads + h) * dim, a.F(1) + t * dim, dim, a.Out(2) + (t * heads + h) * dim);
  });
  return kOk;
}
MSMS_INFER(Rope, Like(ndims, shapes, 0))

extern "C" int SwigluInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
extern "C" int Swiglu(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "float32") || !a.Is(1, "float32")) return kType;
  if (!a.Same(0, 1)) return kShape;
  const int64_t size = a.Size(0);
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  // Pieces are multiples of 16, so an element meets the same lane arithmetic wherever the cut falls.
  pool.For(size, kSmall, [&](int64_t begin, int64_t end, int) {
    Active().swiglu(a.F(0) + begin, a.F(1) + begin, a.Out(2) + begin, end - begin);
  });
  return kOk;
}
MSMS_INFER(Swiglu, Like(ndims, shapes, 0))

extern "C" int EmbeddingInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new LinearData;
  Attrs attrs(extra);
  d->w = attrs.Matrix("weight");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int Embedding(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<LinearData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "int32", 1) || !a.Is(1, "uint8", 1)) return kType;
  const Weight &w = d->w;
  if (!w.Fits(a.Dim(1, 0))) return kArena;
  const int64_t rows = a.Dim(0, 0);
  for (int64_t t = 0; t < rows; ++t)
    if (a.I(0)[t] < 0 || a.I(0)[t] >= w.n) return kToken;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      Active().unpack_row(w, w.Panel(a.Bytes(1), a.I(0)[t] / 16), a.I(0)[t] % 16, a.Out(2) + t * w.k);
  });
  return kOk;
}
extern "C" std::vector<int64_t> EmbeddingInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  const auto d = extra->GetAttrIntVec("weight");
  return {DimOf(ndims, shapes, 0, 0), d.size() == 7 ? d[2] : 0};
}
extern "C" int EmbeddingInferType(std::vector<int>, AotExtra *) { return kFloat32; }

namespace {
// y[r] = W x[r] + bias for `rows` rows that `source(r, buffer)` yields; y has w.n columns.
template <class Source>
int Multiply(const Weight &w, const uint8_t *arena, const float *bias, int64_t rows, float *y, Source source) {
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int64_t most = std::min(rows, kChunk), threads = pool.threads(), scratch = PanelScratch({&w});
  uint8_t *base = nullptr;
  for (int pass = 0; pass < 2; ++pass) {
    Carver carver(base);
    ActSet sizing(carver, most, {&w});
    float *tiles = carver.Take<float>(threads * most * 32);
    float *spare = carver.Take<float>(threads * scratch);
    float *buffers = carver.Take<float>(threads * w.k);
    if (pass == 0) {
      base = pool.Scratch(carver.used());
      continue;
    }
    for (int64_t start = 0; start < rows; start += kChunk) {
      const int64_t count = std::min(kChunk, rows - start);
      Carver again(base);
      const ActSet acts(again, count, {&w});
      PackRows(pool, acts, count, [&](int64_t r, int thread) { return source(start + r, buffers + thread * w.k); });
      pool.For(w.panels, Piece(w.panels, w, count, static_cast<int>(threads)), [&](int64_t begin, int64_t end, int thread) {
        ByTwo(begin, end, [&](int64_t p, int two) {
          PanelRows(w, arena, p, two, acts.For(w), bias, tiles + thread * most * 32, spare + thread * scratch,
                    [&](int64_t r, int64_t first, int64_t columns, const float *values) {
                      std::memcpy(y + (start + r) * w.n + first, values, static_cast<size_t>(columns) * 4);
                    });
        });
      });
    }
  }
  return kOk;
}
}  // namespace

extern "C" int LinearInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new LinearData;
  Attrs attrs(extra);
  d->w = attrs.Matrix("weight");
  d->bias = attrs.Int("bias");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int Linear(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<LinearData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32", 2) || !a.Is(1, "uint8", 1)) return kType;
  const Weight &w = d->w;
  if (a.Dim(0, 1) != w.k) return kShape;
  if (!w.Fits(a.Dim(1, 0)) || !VectorFits(d->bias, w.n, a.Dim(1, 0), true)) return kArena;
  return Multiply(w, a.Bytes(1), Vector(a.Bytes(1), d->bias), a.Dim(0, 0), a.Out(2), [&](int64_t r, float *) { return a.F(0) + r * w.k; });
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" std::vector<int64_t> LinearInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  const auto d = extra->GetAttrIntVec("weight");
  return {DimOf(ndims, shapes, 0, 0), d.size() == 7 ? d[1] : 0};
}
extern "C" int LinearInferType(std::vector<int>, AotExtra *) { return kFloat32; }

extern "C" int LmHeadInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new HeadData;
  Attrs attrs(extra);
  d->eps = attrs.Float("eps");
  d->norm = attrs.Int("norm");
  d->w = attrs.Matrix("weight");
  d->bias = attrs.Int("bias");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int LmHead(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<HeadData>(extra);
  if (!a.Count(4)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32", 2) || !a.Is(1, "int32", 1) || !a.Is(2, "uint8", 1)) return kType;
  const Weight &w = d->w;
  const int64_t size = a.Dim(2, 0), rows = a.Dim(1, 0);
  if (a.Dim(0, 1) != w.k) return kShape;
  if (!w.Fits(size) || !VectorFits(d->norm, w.k, size) || !VectorFits(d->bias, w.n, size, true)) return kArena;
  for (int64_t r = 0; r < rows; ++r)
    if (a.I(1)[r] < 0 || a.I(1)[r] >= a.Dim(0, 0)) return kRows;
  const float *norm = Vector(a.Bytes(2), d->norm);
  return Multiply(w, a.Bytes(2), Vector(a.Bytes(2), d->bias), rows, a.Out(3), [&](int64_t r, float *buffer) {
    Active().rms_norm(a.F(0) + a.I(1)[r] * w.k, norm, d->eps, w.k, buffer);
    return static_cast<const float *>(buffer);
  });
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" std::vector<int64_t> LmHeadInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  const auto d = extra->GetAttrIntVec("weight");
  return {DimOf(ndims, shapes, 1, 0), d.size() == 7 ? d[1] : 0};
}
extern "C" int LmHeadInferType(std::vector<int>, AotExtra *) { return kFloat32; }
