// Attention over plain tensors and over the paged cache, and the fused attention block of a decoder layer.
#include "cache.h"

namespace msms {
std::vector<Job> PlanJobs(const Ragged &b, int64_t first, int64_t count, int64_t heads, int64_t kv_heads, int threads) {
  const int64_t group = heads / kv_heads;
  std::vector<Job> jobs;
  for (int pass = 0; pass < 2; ++pass) {
    const int64_t at_once = pass ? 1 : std::max<int64_t>(1, 8 / group), heads_at_once = pass ? 1 : std::min<int64_t>(group, 8);
    jobs.clear();
    for (int64_t s = 0; s < b.sequences; ++s) {
      const int64_t begin = std::max<int64_t>(b.starts[s], first), end = std::min<int64_t>(b.starts[s + 1], first + count);
      for (int64_t t = begin; t < end; t += at_once)
        for (int64_t k = 0; k < kv_heads; ++k)
          for (int64_t h = 0; h < group; h += heads_at_once)
            jobs.push_back({static_cast<int32_t>(s), static_cast<int32_t>(t), static_cast<int32_t>(std::min(t + at_once, end)),
                            static_cast<int32_t>(k), static_cast<int32_t>(k * group + h),
                            static_cast<int32_t>(k * group + std::min(h + heads_at_once, group))});
    }
    if (static_cast<int64_t>(jobs.size()) >= 3 * threads || threads == 1) break;
  }
  return jobs;
}

void RunJob(const Job &job, const Ragged &b, const Cache &c, const float *q, int64_t q_stride, float *out, int64_t out_stride,
            int64_t first, float scale, float *scores, int64_t score_stride) {
  AttendJob work;
  for (int64_t t = job.begin; t < job.end; ++t) {
    for (int64_t h = job.head_begin; h < job.head_end; ++h) {
      work.q[work.rows] = q + (t - first) * q_stride + h * c.dim;
      work.out[work.rows] = out + (t - first) * out_stride + h * c.dim;
      work.length[work.rows++] = b.positions[t] + 1;
    }
  }
  work.dim = c.dim, work.block = c.block, work.half = c.half, work.scale = scale;
  work.cache = c.Keys(0, job.kv_head), work.table = b.tables + job.sequence * b.width;
  work.block_bytes = c.block_bytes(), work.value_bytes = c.value_bytes();
  work.scores = scores, work.stride = score_stride;
  Active().attend(work);
}
}  // namespace msms

using namespace msms;

namespace {
struct ScaleData : AotKernelData {
  float scale = 0;
  int64_t layer = 0;
  bool ok = false;
};
}  // namespace

extern "C" int AttentionInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new ScaleData;
  Attrs attrs(extra);
  d->scale = attrs.Float("scale");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
// Keys and values are laid out as one cache of 64-position blocks, then attended to like any other.
extern "C" int Attention(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<ScaleData>(extra);
  if (!a.Count(4)) return kCount;
  if (!d || !d->ok) return kAttribute;
  for (int i = 0; i < 3; ++i)
    if (!a.Is(i, "float32", 4)) return kType;
  const int64_t batch = a.Dim(0, 0), rows = a.Dim(0, 1), heads = a.Dim(0, 2), dim = a.Dim(0, 3);
  const int64_t keys = a.Dim(1, 1), kv_heads = a.Dim(1, 2);
  if (!a.Same(1, 2) || a.Dim(1, 0) != batch || a.Dim(1, 3) != dim || keys < rows || !HeadsMakeSense(heads, kv_heads, dim)) return kShape;
  if (batch * rows == 0) return kOk;
  Cache c;
  c.heads = kv_heads, c.dim = dim, c.padded = (dim + 15) / 16 * 16, c.block = 64;
  const int64_t per_sequence = (keys + 63) / 64;
  c.blocks = batch * per_sequence;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int threads = pool.threads();
  const int64_t stride = ScoreStride(keys);
  int32_t *positions = nullptr, *starts = nullptr, *tables = nullptr;
  float *scores = nullptr;
  uint8_t *base = nullptr;
  for (int pass = 0; pass < 2; ++pass) {
    Carver carver(base);
    positions = carver.Take<int32_t>(batch * rows);
    starts = carver.Take<int32_t>(batch + 1);
    tables = carver.Take<int32_t>(c.blocks);
    scores = carver.Take<float>(threads * 8 * stride);
    c.base = carver.Take<uint8_t>(c.blocks * c.block_bytes());
    if (pass == 0) base = pool.Scratch(carver.used());
  }
  for (int64_t i = 0; i < c.blocks; ++i) tables[i] = static_cast<int32_t>(i);
  for (int64_t i = 0; i <= batch; ++i) starts[i] = static_cast<int32_t>(i * rows);
  for (int64_t i = 0; i < batch * rows; ++i) positions[i] = static_cast<int32_t>(keys - rows + i % rows);
  const Ragged b{positions, nullptr, starts, tables, batch * rows, batch, per_sequence, keys};
  const std::vector<Job> jobs = PlanJobs(b, 0, b.tokens, heads, kv_heads, threads);
  pool.For(batch * keys, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = i / keys * per_sequence + i % keys / 64;
      for (int64_t h = 0; h < kv_heads; ++h)
        Active().store_kv(a.F(1) + (i * kv_heads + h) * dim, a.F(2) + (i * kv_heads + h) * dim, dim, 64, i % keys % 64, false, c.Keys(id, h),
                          c.Keys(id, h) + c.value_bytes());
    }
  });
  pool.For(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t j = begin; j < end; ++j)
      RunJob(jobs[j], b, c, a.F(0), heads * dim, a.Out(3), heads * dim, 0, d->scale, scores + thread * 8 * stride, stride);
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(Attention, Like(ndims, shapes, 0))

extern "C" int PagedAttentionInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new ScaleData;
  Attrs attrs(extra);
  d->scale = attrs.Float("scale");
  d->layer = attrs.Int("layer");
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int PagedAttention(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<ScaleData>(extra);
  if (!a.Count(9)) return kCount;
  if (!d || !d->ok) return kAttribute;
  for (int i = 0; i < 3; ++i)
    if (!a.Is(i, "float32", 3)) return kType;
  const int64_t rows = a.Dim(0, 0), heads = a.Dim(0, 1), dim = a.Dim(0, 2), kv_heads = a.Dim(1, 1);
  if (!a.Same(1, 2) || a.Dim(1, 0) != rows || a.Dim(1, 2) != dim || !HeadsMakeSense(heads, kv_heads, dim)) return kShape;
  Cache c;
  if (const int code = OpenCache(a, 3, d->layer, kv_heads, dim, &c)) return code;
  Ragged b;
  if (const int code = OpenRagged(a, 4, rows, c, &b)) return code;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  const int threads = pool.threads();
  const int64_t stride = ScoreStride(b.longest);
  float *scores = reinterpret_cast<float *>(pool.Scratch(static_cast<size_t>(threads * 8 * stride * 4)));
  const std::vector<Job> jobs = PlanJobs(b, 0, rows, heads, kv_heads, threads);
  pool.For(rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < kv_heads; ++h) {
        uint8_t *keys = c.Keys(b.slots[t] / c.block, h);
        Active().store_kv(a.F(1) + (t * kv_heads + h) * dim, a.F(2) + (t * kv_heads + h) * dim, dim, c.block, b.slots[t] % c.block, c.half,
                          keys, keys + c.value_bytes());
      }
  });
  pool.For(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t j = begin; j < end; ++j)
      RunJob(jobs[j], b, c, a.F(0), heads * dim, a.Out(8), heads * dim, 0, d->scale, scores + thread * 8 * stride, stride);
  });
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(PagedAttention, Like(ndims, shapes, 0))
