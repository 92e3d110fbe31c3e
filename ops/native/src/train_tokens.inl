// Token embedding and dropout of training. Part of train_basic.cc.
namespace {
struct VocabularyData : AotKernelData {
  int64_t rows = 0;
  bool ok = false;
};
struct DropoutData : AotKernelData {
  int32_t threshold = 0;
  float scale = 1;
  bool ok = false;
};

// kToken unless every one of `count` ids is in [0, rows).
int CheckIds(const int32_t *ids, int64_t count, int64_t rows) {
  for (int64_t t = 0; t < count; ++t)
    if (ids[t] < 0 || ids[t] >= rows) return kToken;
  return kOk;
}
}  // namespace

extern "C" int TokenEmbeddingInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
// (ids int32 of any rank, weight [V, H]) -> [..., H].
extern "C" int TokenEmbedding(MSMS_PARAMS) {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  if (!a.Is(0, "int32") || !a.Is(1, "float32", 2)) return kType;
  const int64_t count = Elements(a, 0), h = a.Dim(1, 1);
  if (count < 0 || h < 1 || Elements(a, 1) < 0 || count > kMostElements / h) return kShape;
  if (const int code = CheckIds(a.I(0), count, a.Dim(1, 0))) return code;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  pool.For(count, std::max<int64_t>(1, kPiece / h), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) std::memcpy(a.Out(2) + t * h, a.F(1) + a.I(0)[t] * h, static_cast<size_t>(h) * 4);
  });
  return kOk;
}
extern "C" std::vector<int64_t> TokenEmbeddingInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  auto shape = Like(ndims, shapes, 0);
  shape.push_back(DimOf(ndims, shapes, 1, 1));
  return shape;
}
extern "C" int TokenEmbeddingInferType(std::vector<int>, AotExtra *) { return kFloat32; }

extern "C" int TokenEmbeddingGradInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new VocabularyData;
  Attrs attrs(extra);
  d->rows = attrs.Int("vocabulary");
  d->ok = attrs.ok && d->rows >= 1 && d->rows <= kMaxDim;
  extra->SetKernelData(d);
  return 0;
}
// (dy [..., H], ids) -> dw [V, H]. Tokens are sorted by id, in their order, and each row is one thread's: no two add to
// the same place, and the sum of a row has one order.
extern "C" int TokenEmbeddingGrad(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<VocabularyData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32") || !a.Is(1, "int32")) return kType;
  if (a.Rank(0) != a.Rank(1) + 1) return kShape;
  for (int i = 0; i < a.Rank(1); ++i)
    if (a.Dim(0, i) != a.Dim(1, i)) return kShape;
  const int64_t count = Elements(a, 1), h = a.Dim(0, a.Rank(1)), rows = d->rows;
  if (count < 0 || count > INT32_MAX || h < 1 || Elements(a, 0) < 0 || rows > kMostElements / h) return kShape;
  if (const int code = CheckIds(a.I(1), count, rows)) return code;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int64_t threads = pool.threads();
  const size_t bytes = static_cast<size_t>((rows + 1 + count) * 4 + threads * h * 4 + 256);
  Carver carver(pool.Scratch(bytes));
  float *spare = carver.Take<float>(threads * h);
  int32_t *ends = carver.Take<int32_t>(rows + 1), *order = carver.Take<int32_t>(count);
  std::memset(ends, 0, static_cast<size_t>(rows + 1) * 4);
  for (int64_t t = 0; t < count; ++t) ++ends[a.I(1)[t] + 1];
  for (int64_t v = 0; v < rows; ++v) ends[v + 1] += ends[v];
  for (int64_t t = 0; t < count; ++t) order[ends[a.I(1)[t]]++] = static_cast<int32_t>(t);
  // Now ends[v] is where the tokens of v end, and those of v + 1 begin.
  pool.For(rows, std::max<int64_t>(1, kPiece / h), [&](int64_t begin, int64_t end, int thread) {
    for (int64_t v = begin; v < end; ++v) {
      const int64_t first = v ? ends[v - 1] : 0;
      if (first == ends[v]) std::memset(a.Out(2) + v * h, 0, static_cast<size_t>(h) * 4);
      else Active().train->add_rows(a.F(0), order + first, ends[v] - first, h, a.Out(2) + v * h, spare + thread * h);
    }
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" std::vector<int64_t> TokenEmbeddingGradInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  return {extra->GetAttrInt("vocabulary"), ndims[0] > 0 ? shapes[0][ndims[0] - 1] : 0};
}
extern "C" int TokenEmbeddingGradInferType(std::vector<int>, AotExtra *) { return kFloat32; }

extern "C" int DropoutInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new DropoutData;
  Attrs attrs(extra);
  const float p = attrs.Float("p");
  d->ok = attrs.ok && p >= 0 && p <= 1;
  if (d->ok) {
    d->threshold = static_cast<int32_t>(std::lround(p * 16777216.0));
    d->scale = p < 1 ? static_cast<float>(1 / (1 - static_cast<double>(p))) : 0.0f;
  }
  extra->SetKernelData(d);
  return 0;
}
// (x, seed int32 [2]) -> x / (1 - p) where the element's draw is at least p, else 0. Its own gradient, given dy.
extern "C" int Dropout(MSMS_PARAMS) {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<DropoutData>(extra);
  if (!a.Count(3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(1, "int32", 1)) return kType;
  if (const int code = CheckAlike(a, 1)) return code;
  if (a.Dim(1, 0) != 2) return kShape;
  ForElements(Elements(a, 0), [&](int64_t at, int64_t count) {
    Active().train->dropout(a.F(0) + at, a.I(1), at, count, d->threshold, d->scale, a.Out(2) + at);
  });
  return kOk;
}
MSMS_INFER(Dropout, Like(ndims, shapes, 0))
