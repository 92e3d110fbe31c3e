// The two fused halves of a decoder layer. Rows are worked on in chunks, so that activations stay in the cache;
// a row's result depends neither on the chunk nor on the rows beside it.
#include "cache.h"

using namespace msms;

namespace {
struct AttentionData : AotKernelData {
  int64_t layer = 0, heads = 0, kv_heads = 0, dim = 0, norm = 0;
  float eps = 0, scale = 0;
  Weight q, k, v, o;
  std::vector<int64_t> biases, qk_norm;
  bool ok = false;
};
struct MlpData : AotKernelData {
  int64_t norm = 0;
  float eps = 0;
  Weight gate, up, down;
  std::vector<int64_t> biases;
  bool ok = false;
};
int64_t Padded(int64_t n) { return (n + 15) / 16 * 16; }

// Adds one panel's rows to the residual: y = x + values.
struct AddResidual {
  const float *x;
  float *y;
  int64_t width;
  void operator()(int64_t r, int64_t first, int64_t columns, const float *values) const {
    const int64_t at = r * width + first;
    Active().add(x + at, values, y + at, columns);
  }
};
}  // namespace

extern "C" int AttentionBlockInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new AttentionData;
  Attrs attrs(extra);
  d->layer = attrs.Int("layer");
  d->eps = attrs.Float("eps");
  d->scale = attrs.Float("scale");
  const auto heads = attrs.Ints("heads", 3);
  d->heads = heads[0], d->kv_heads = heads[1], d->dim = heads[2];
  d->norm = attrs.Int("norm");
  d->q = attrs.Matrix("wq"), d->k = attrs.Matrix("wk"), d->v = attrs.Matrix("wv"), d->o = attrs.Matrix("wo");
  d->biases = attrs.Ints("biases", 4);
  d->qk_norm = attrs.Ints("qk_norm", 2);
  d->ok = attrs.ok && HeadsMakeSense(d->heads, d->kv_heads, d->dim) && d->dim % 2 == 0 && d->q.n == d->heads * d->dim && d->k.n == d->kv_heads * d->dim && d->v.n == d->k.n && d->k.k == d->q.k &&
          d->v.k == d->q.k && d->o.k == d->q.n && d->o.n == d->q.k;
  extra->SetKernelData(d);
  return 0;
}

extern "C" int AttentionBlock(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(9)) return kCount;
  const auto *d = Data<AttentionData>(extra);
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32", 2) || !a.Is(1, "float32", 2) || !a.Is(2, "uint8", 1)) return kType;
  const int64_t rows = a.Dim(0, 0), hidden = a.Dim(0, 1), dim = d->dim, size = a.Dim(2, 0);
  if (hidden != d->q.k || a.Dim(1, 0) != rows || a.Dim(1, 1) != dim) return kShape;
  for (const Weight *w : {&d->q, &d->k, &d->v, &d->o})
    if (!w->Fits(size)) return kArena;
  const int64_t widths[4] = {d->q.n, d->k.n, d->v.n, hidden};
  for (int i = 0; i < 4; ++i)
    if (!VectorFits(d->biases[i], widths[i], size, true)) return kArena;
  if (!VectorFits(d->norm, hidden, size) || !VectorFits(d->qk_norm[0], dim, size, true) || !VectorFits(d->qk_norm[1], dim, size, true)) return kArena;
  Cache c;
  if (const int code = OpenCache(a, 3, d->layer, d->kv_heads, dim, &c)) return code;
  Ragged b;
  if (const int code = OpenRagged(a, 4, rows, c, &b)) return code;

  const uint8_t *arena = a.Bytes(2);
  const float *x = a.F(0), *norm = Vector(arena, d->norm), *q_norm = Vector(arena, d->qk_norm[0]), *k_norm = Vector(arena, d->qk_norm[1]);
  float *y = a.Out(8);
  const int64_t k_at = Padded(d->q.n), v_at = k_at + Padded(d->k.n), wide = v_at + Padded(d->v.n), inner = d->heads * dim;
  const int64_t panels = d->q.panels + d->k.panels + d->v.panels, stride = ScoreStride(b.longest);
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int threads = pool.threads();
  const int64_t most = std::min(rows, kChunk), spare_size = PanelScratch({&d->q, &d->k, &d->v, &d->o});
  size_t bytes = 0;
  for (int pass = 0; pass < 2 && rows; ++pass) {
    uint8_t *base = pass ? pool.Scratch(bytes) : nullptr;
    for (int64_t first = 0; first < rows; first += kChunk) {
      const int64_t count = pass ? std::min(kChunk, rows - first) : most;
      Carver carver(base);
      float *normed = carver.Take<float>(threads * hidden);
      float *qkv = carver.Take<float>(most * wide);
      float *mixed = carver.Take<float>(most * inner);
      float *scores = carver.Take<float>(threads * 8 * stride);
      float *tiles = carver.Take<float>(threads * most * 32);
      float *spare = carver.Take<float>(threads * spare_size);
      const ActSet in(carver, count, {&d->q, &d->k, &d->v});
      const ActSet out(carver, count, {&d->o});
      if (!pass) {
        bytes = carver.used();
        break;
      }
      const std::vector<Job> jobs = PlanJobs(b, first, count, d->heads, d->kv_heads, threads);
      PackRows(pool, in, count, [&](int64_t r, int thread) {
        float *own = normed + thread * hidden;
        Active().rms_norm(x + (first + r) * hidden, norm, d->eps, hidden, own);
        return own;
      });
      pool.For(panels, Piece(panels, d->q, count, threads), [&](int64_t begin, int64_t end, int thread) {
        int64_t before = 0;  // the panels of q, k and v are numbered one after the other
        float *to = qkv;
        for (const Weight *w : {&d->q, &d->k, &d->v}) {
          ByTwo(std::max<int64_t>(begin - before, 0), std::min(end - before, w->panels), [&](int64_t p, int two) {
            Active().panels(*w, w->Panel(arena, p), two, in.For(*w), to + p * 16, wide, spare + thread * spare_size);
          });
          before += w->panels;
          to += Padded(w->n);
        }
      });
      pool.For(count, kTile, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
          float *row = qkv + r * wide;
          const int64_t at[3] = {0, k_at, v_at};
          for (int i = 0; i < 3; ++i)
            if (const float *bias = Vector(arena, d->biases[i])) Active().add(row + at[i], bias, row + at[i], widths[i]);
          const float *table = a.F(1) + (first + r) * dim;
          for (int64_t h = 0; h < d->heads + d->kv_heads; ++h) {
            float *head = h < d->heads ? row + h * dim : row + k_at + (h - d->heads) * dim;
            if (const float *w = h < d->heads ? q_norm : k_norm) Active().rms_norm(head, w, d->eps, dim, head);
            Active().rope(head, table, dim, head);
          }
          const int64_t slot = b.slots[first + r];
          for (int64_t h = 0; h < d->kv_heads; ++h) {
            uint8_t *keys = c.Keys(slot / c.block, h);
            Active().store_kv(row + k_at + h * dim, row + v_at + h * dim, dim, c.block, slot % c.block, c.half, keys, keys + c.value_bytes());
          }
        }
      });
      pool.For(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t j = begin; j < end; ++j)
          RunJob(jobs[j], b, c, qkv, wide, mixed, inner, first, d->scale, scores + thread * 8 * stride, stride);
      });
      PackRows(pool, out, count, [&](int64_t r, int) { return mixed + r * inner; });
      pool.For(d->o.panels, Piece(d->o.panels, d->o, count, threads), [&](int64_t begin, int64_t end, int thread) {
        ByTwo(begin, end, [&](int64_t p, int two) {
          PanelRows(d->o, arena, p, two, out.For(d->o), Vector(arena, d->biases[3]), tiles + thread * most * 32, spare + thread * spare_size,
                    AddResidual{x + first * hidden, y + first * hidden, hidden});
        });
      });
    }
  }
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(AttentionBlock, Like(ndims, shapes, 0))

extern "C" int MlpBlockInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new MlpData;
  Attrs attrs(extra);
  d->eps = attrs.Float("eps");
  d->norm = attrs.Int("norm");
  d->gate = attrs.Matrix("gate"), d->up = attrs.Matrix("up"), d->down = attrs.Matrix("down");
  d->biases = attrs.Ints("biases", 3);
  d->ok = attrs.ok && d->gate.n == d->up.n && d->gate.k == d->up.k && d->down.k == d->gate.n && d->down.n == d->gate.k;
  extra->SetKernelData(d);
  return 0;
}

extern "C" int MlpBlock(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  if (!a.Count(3)) return kCount;
  const auto *d = Data<MlpData>(extra);
  if (!d || !d->ok) return kAttribute;
  if (!a.Is(0, "float32", 2) || !a.Is(1, "uint8", 1)) return kType;
  const int64_t rows = a.Dim(0, 0), hidden = a.Dim(0, 1), inner = d->gate.n, size = a.Dim(1, 0);
  if (hidden != d->gate.k) return kShape;
  for (const Weight *w : {&d->gate, &d->up, &d->down})
    if (!w->Fits(size)) return kArena;
  if (!VectorFits(d->norm, hidden, size) || !VectorFits(d->biases[0], inner, size, true) || !VectorFits(d->biases[1], inner, size, true) ||
      !VectorFits(d->biases[2], hidden, size, true))
    return kArena;

  const uint8_t *arena = a.Bytes(1);
  const float *x = a.F(0), *norm = Vector(arena, d->norm);
  float *y = a.Out(2);
  const int64_t wide = Padded(inner), most = std::min(rows, kChunk), spare_size = PanelScratch({&d->gate, &d->up, &d->down});
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int threads = pool.threads();
  size_t bytes = 0;
  for (int pass = 0; pass < 2 && rows; ++pass) {
    uint8_t *base = pass ? pool.Scratch(bytes) : nullptr;
    for (int64_t first = 0; first < rows; first += kChunk) {
      const int64_t count = pass ? std::min(kChunk, rows - first) : most;
      Carver carver(base);
      float *normed = carver.Take<float>(threads * hidden);
      float *gated = carver.Take<float>(most * wide);
      float *tiles = carver.Take<float>(threads * most * 64);
      float *spare = carver.Take<float>(threads * spare_size);
      const ActSet in(carver, count, {&d->gate, &d->up});
      const ActSet out(carver, count, {&d->down});
      if (!pass) {
        bytes = carver.used();
        break;
      }
      PackRows(pool, in, count, [&](int64_t r, int thread) {
        float *own = normed + thread * hidden;
        Active().rms_norm(x + (first + r) * hidden, norm, d->eps, hidden, own);
        return own;
      });
      pool.For(d->gate.panels, Piece(d->gate.panels, d->gate, count, threads), [&](int64_t begin, int64_t end, int thread) {
        float *tile = tiles + thread * most * 64, *up = tile + most * 32, *expanded = spare + thread * spare_size;
        ByTwo(begin, end, [&](int64_t p, int two) {
          PanelRows(d->gate, arena, p, two, in.For(d->gate), Vector(arena, d->biases[0]), tile, expanded, [](int64_t, int64_t, int64_t, const float *) {});
          PanelRows(d->up, arena, p, two, in.For(d->up), Vector(arena, d->biases[1]), up, expanded,
                    [&](int64_t r, int64_t column, int64_t columns, const float *values) {
                      Active().swiglu(tile + r * 32, values, gated + r * wide + column, columns);
                    });
        });
      });
      PackRows(pool, out, count, [&](int64_t r, int) { return gated + r * wide; });
      pool.For(d->down.panels, Piece(d->down.panels, d->down, count, threads), [&](int64_t begin, int64_t end, int thread) {
        ByTwo(begin, end, [&](int64_t p, int two) {
          PanelRows(d->down, arena, p, two, out.For(d->down), Vector(arena, d->biases[2]), tiles + thread * most * 64, spare + thread * spare_size,
                    AddResidual{x + first * hidden, y + first * hidden, hidden});
        });
      });
    }
  }
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(MlpBlock, Like(ndims, shapes, 0))
