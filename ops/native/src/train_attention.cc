// Attention of training: forward saves only the logarithm of each row's sum, backward makes the scores again.
#include <algorithm>
#include <cmath>

#include "args.h"
#include "flash.h"

using namespace msms;

namespace {
constexpr double kSmallWork = 1 << 18;  // multiplications below which waking another thread costs more than it gains

struct FlashData : AotKernelData {
  float scale = 0, dropout = 0;
  bool ok = false;
};

// Shapes of q, k, v at input i; at `at` starts [batch, rows], or a vector of one number for none, and the seed.
int Open(const Args &a, const FlashData &d, int i, int at, FlashShape *s) {
  for (int j = i; j < i + 3; ++j)
    if (!a.Is(j, "float32", 4)) return kType;
  s->batch = a.Dim(i, 0), s->rows = a.Dim(i, 1), s->heads = a.Dim(i, 2), s->dim = a.Dim(i, 3);
  s->keys = a.Dim(i + 1, 1), s->kv_heads = a.Dim(i + 1, 2);
  if (!a.Same(i + 1, i + 2) || a.Dim(i + 1, 0) != s->batch || a.Dim(i + 1, 3) != s->dim) return kShape;
  if (s->batch < 0 || s->rows < 0 || s->keys < s->rows || s->keys > int64_t{1} << 30 || s->batch > int64_t{1} << 30) return kShape;
  if (s->heads < 1 || s->kv_heads < 1 || s->heads > 4096 || s->heads % s->kv_heads || s->dim < 2 || s->dim > 256) return kShape;
  s->scale = d.scale;
  if (!a.Is(at, "int32") || !a.Is(at + 1, "int32", 1) || (a.Rank(at) != 1 && a.Rank(at) != 2)) return kType;
  if (a.Dim(at + 1, 0) != 2 || (a.Rank(at) == 1 && a.Dim(at, 0) != 1)) return kShape;
  if (a.Rank(at) == 2) {
    if (a.Dim(at, 0) != s->batch || a.Dim(at, 1) != s->rows || s->keys != s->rows) return kShape;
    s->starts = a.I(at);
    for (int64_t r = 0; r < s->batch * s->rows; ++r)
      if (s->starts[r] < 0 || s->starts[r] > r % s->rows) return kStarts;
  }
  if (d.dropout > 0) {
    s->seed[0] = static_cast<uint32_t>(a.I(at + 1)[0]), s->seed[1] = static_cast<uint32_t>(a.I(at + 1)[1]);
    s->threshold = static_cast<uint32_t>(std::lround(static_cast<double>(d.dropout) * (1 << 24)));
    s->keep = 1.0f / (1.0f - d.dropout);
  }
  return kOk;
}
bool Is3(const Args &a, int i, const FlashShape &s) { return a.Dim(i, 0) == s.batch && a.Dim(i, 1) == s.heads && a.Dim(i, 2) == s.rows; }
double WorkOf(const FlashShape &s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.heads * s.dim) * static_cast<double>(s.rows) * static_cast<double>(s.keys);
}

// One key block after the other, each against all queries that see it; or, where there are fewer heads than the threads
// can share, all pairs of blocks whose numbers have the same sum at once: the order of every sum is the same.
void RunBackward(const FlashBackward &f, Pool *pool, float *scratch, int64_t floats) {
  const FlashShape &s = f.s;
  const auto run = Active().flash->backward;
  const int64_t key_blocks = (s.keys + kFlashKeys - 1) / kFlashKeys, query_blocks = (s.rows + kFlashKeys - 1) / kFlashKeys;
  const int64_t heads = s.batch * s.kv_heads, past = s.past();
  // The first block of queries that reaches key block j.
  const auto first = [&](int64_t j) { return std::max<int64_t>(0, j * kFlashKeys - past) / kFlashKeys; };
  if (WorkOf(s) < kSmallWork || heads >= 4 * pool->threads() || key_blocks < 3) {
    const int64_t piece = WorkOf(s) < kSmallWork ? heads : 1;
    return pool->For(heads, piece, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < key_blocks; ++j)
          run(f, i / s.kv_heads, i % s.kv_heads, j, first(j), query_blocks, true, scratch + thread * floats);
    });
  }
  for (int64_t sum = 0; sum <= key_blocks + query_blocks - 2; ++sum) {
    int64_t j0 = std::max<int64_t>(0, sum - query_blocks + 1), j1 = std::min(key_blocks, sum + 1);
    while (j1 > j0 && sum - (j1 - 1) < first(j1 - 1)) --j1;
    const int64_t pairs = j1 - j0;
    if (pairs <= 0) continue;
    pool->For(heads * pairs, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / pairs, j = j0 + i % pairs, at = sum - j;
        run(f, head / s.kv_heads, head % s.kv_heads, j, at, at + 1, at == first(j), scratch + thread * floats);
      }
    });
  }
}
}  // namespace

extern "C" int FlashAttentionInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new FlashData;
  Attrs attrs(extra);
  d->scale = attrs.Float("scale");
  d->dropout = attrs.Float("dropout");
  d->ok = attrs.ok && std::isfinite(d->scale) && d->dropout >= 0 && d->dropout < 1;
  extra->SetKernelData(d);
  return 0;
}
// (q, k, v, starts [batch, rows] or [1] for none, seed [2]) -> y, lse [batch, heads, rows].
extern "C" int FlashAttention(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<FlashData>(extra);
  constexpr int outputs = 5;
  if (!a.Count(outputs + 2)) return kCount;
  if (!d || !d->ok) return kAttribute;
  FlashForward f{};
  if (const int code = Open(a, *d, 0, 3, &f.s)) return code;
  const FlashShape &s = f.s;
  if (!a.Is(outputs, "float32", 4) || !a.Is(outputs + 1, "float32", 3)) return kType;
  if (!a.Same(outputs, 0) || !Is3(a, outputs + 1, s)) return kShape;
  if (s.batch * s.rows == 0) return kOk;
  f.q = a.F(0), f.k = a.F(1), f.v = a.F(2), f.y = a.Out(outputs), f.lse = a.Out(outputs + 1);
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const FlashKernels &kernels = *Active().flash;
  const int64_t floats = (kernels.forward_scratch(s) + 15) / 16 * 16;
  float *scratch = reinterpret_cast<float *>(pool.Scratch(sizeof(float) * static_cast<size_t>(floats * pool.threads())));
  // Heads that share keys are taken together, and queries enough for about four panels.
  const int64_t sets = (s.group() + kFlashHeads - 1) / kFlashHeads, at_once = (s.group() + sets - 1) / sets;
  const int64_t span = kFlashLanes * (at_once == 1 ? 4 : at_once <= 4 ? 2 : 1), blocks = (s.rows + span - 1) / span;
  const int64_t pieces = s.batch * s.kv_heads * sets * blocks;
  pool.For(pieces, WorkOf(s) < kSmallWork ? pieces : 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = blocks - 1 - i % blocks, set = i / blocks % sets, head = i / blocks / sets;  // the longest first
      const int64_t h0 = head % s.kv_heads * s.group(), h = h0 + set * at_once;
      kernels.forward(f, head / s.kv_heads, h, std::min(h + at_once, h0 + s.group()), block * span, std::min((block + 1) * span, s.rows),
                      scratch + thread * floats);
    }
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" std::vector<std::vector<int64_t>> FlashAttentionInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {Like(ndims, shapes, 0), {DimOf(ndims, shapes, 0, 0), DimOf(ndims, shapes, 0, 2), DimOf(ndims, shapes, 0, 1)}};
}
extern "C" std::vector<int> FlashAttentionInferType(std::vector<int>, AotExtra *) { return {kFloat32, kFloat32}; }

extern "C" int FlashAttentionGradInit(int *ndims, int64_t **shapes, const char **types, AotExtra *extra) {
  return FlashAttentionInit(ndims, shapes, types, extra);
}
// (dy, q, k, v, y, lse, starts, seed) -> dq, dk, dv.
extern "C" int FlashAttentionGrad(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<FlashData>(extra);
  constexpr int outputs = 8;
  if (!a.Count(outputs + 3)) return kCount;
  if (!d || !d->ok) return kAttribute;
  FlashBackward f{};
  if (const int code = Open(a, *d, 1, 6, &f.s)) return code;
  const FlashShape &s = f.s;
  if (!a.Is(0, "float32", 4) || !a.Is(4, "float32", 4) || !a.Is(5, "float32", 3)) return kType;
  if (!a.Same(0, 1) || !a.Same(4, 1) || !Is3(a, 5, s)) return kShape;
  for (int i = 0; i < 3; ++i) {
    if (!a.Is(outputs + i, "float32", 4)) return kType;
    if (!a.Same(outputs + i, 1 + i)) return kShape;
  }
  if (s.batch * s.keys == 0) return kOk;
  f.dy = a.F(0), f.q = a.F(1), f.k = a.F(2), f.v = a.F(3), f.y = a.F(4), f.lse = a.F(5);
  f.dq = a.Out(outputs), f.dk = a.Out(outputs + 1), f.dv = a.Out(outputs + 2);
  if (s.rows == 0) {
    for (float *to : {f.dk, f.dv}) std::fill(to, to + a.Size(2), 0.0f);
    return kOk;
  }
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const FlashKernels &kernels = *Active().flash;
  const int64_t floats = (kernels.backward_scratch(s) + 15) / 16 * 16;
  float *scratch = nullptr;
  uint8_t *base = nullptr;
  for (int pass = 0; pass < 2; ++pass) {
    Carver carver(base);
    f.bias = carver.Take<float>(s.batch * s.heads * s.rows);
    f.delta = carver.Take<float>(s.batch * s.heads * s.rows);
    scratch = carver.Take<float>(floats * pool.threads());
    if (pass == 0) base = pool.Scratch(carver.used());
  }
  pool.For(s.batch * s.rows, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) kernels.prepare(f, i / s.rows, i % s.rows);
  });
  RunBackward(f, &pool, scratch, floats);
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
extern "C" std::vector<std::vector<int64_t>> FlashAttentionGradInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {Like(ndims, shapes, 1), Like(ndims, shapes, 2), Like(ndims, shapes, 3)};
}
extern "C" std::vector<int> FlashAttentionGradInferType(std::vector<int>, AotExtra *) { return {kFloat32, kFloat32, kFloat32}; }
