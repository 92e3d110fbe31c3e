// The kernels' own test, run under the address and undefined-behaviour sanitizers: right values against double
// precision, bits that do not depend on the rows beside them, and refusal of every bad index and size.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "../src/args.h"
#include "fake_extra.h"

#define ENTRY(name)                                                                   \
  extern "C" int name(int, void **, int *, int64_t **, const char **, void *, void *); \
  extern "C" int name##Init(int *, int64_t **, const char **, AotExtra *);
ENTRY(RmsNorm) ENTRY(RopeTable) ENTRY(Rope) ENTRY(Swiglu) ENTRY(Attention) ENTRY(PagedAttention) ENTRY(Embedding) ENTRY(Linear)
ENTRY(AttentionBlock) ENTRY(MlpBlock) ENTRY(LmHead)
extern "C" int MsmsSetIsa(const char *);
extern "C" const char *MsmsIsa();
extern "C" void MsmsSetThreads(int);

namespace {
std::atomic<int> failures{0}, checks{0};
void Check(bool ok, const char *what) {
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("FAILED [%s] %s\n", MsmsIsa(), what);
}
thread_local std::mt19937 rng(7);
float Normal() { return std::normal_distribution<float>()(rng); }
std::vector<float> Normals(size_t n) {
  std::vector<float> v(n);
  for (auto &x : v) x = Normal();
  return v;
}
std::vector<uint8_t> arena;
using Ints = std::vector<int64_t>;

// A random matrix in the arena; its exact float values (row-major) go to `values` when asked for.
Ints Matrix(int64_t n, int64_t k, int64_t kind, int64_t group, int64_t asym, int64_t act, std::vector<float> *values = nullptr) {
  Ints d = {static_cast<int64_t>(arena.size()), n, k, kind, group, asym, act};
  msms::Weight w;
  if (!w.Parse(d)) std::abort();
  arena.resize(arena.size() + static_cast<size_t>(w.bytes()));
  uint8_t *base = arena.data() + w.offset;
  for (int64_t i = 0; i < w.bytes(); ++i) base[i] = static_cast<uint8_t>(rng());
  for (int64_t p = 0; p < w.panels; ++p) {
    uint8_t *panel = base + p * w.panel_bytes;
    if (kind == msms::kF32) {
      for (int64_t i = 0; i < k * 16; ++i) {
        const float v = Normal() * 0.1f;
        std::memcpy(panel + i * 4, &v, 4);
      }
    } else if (group) {
      for (int64_t i = 0; i < w.groups * 16 * (asym ? 2 : 1); ++i) {
        const uint16_t half = static_cast<uint16_t>(0x1400 + rng() % 0x0800);
        std::memcpy(panel + w.scale_at + i * 2, &half, 2);
      }
    } else {
      for (int64_t i = 0; i < 16; ++i) {
        const float v = 0.001f + 0.00001f * static_cast<float>(rng() % 100);
        std::memcpy(panel + w.scale_at + i * 4, &v, 4);
      }
    }
  }
  if (values) {
    values->resize(static_cast<size_t>(n * k));
    for (int64_t row = 0; row < n; ++row) msms::kPortable.unpack_row(w, w.Panel(arena.data(), row / 16), static_cast<int>(row % 16), values->data() + row * k);
  }
  return d;
}
int64_t Vector(const std::vector<float> &v) {
  const size_t at = arena.size();
  arena.resize(at + (v.size() * 4 + 63) / 64 * 64);
  std::memcpy(arena.data() + at, v.data(), v.size() * 4);
  return static_cast<int64_t>(at);
}
int64_t Bytes() { return static_cast<int64_t>(arena.size()); }

void TestLinear(int64_t n, int64_t k, int64_t kind, int64_t group, int64_t asym, int64_t act) {
  arena.clear();
  std::vector<float> w, bias = Normals(static_cast<size_t>(n));
  FakeExtra extra;
  extra.lists["weight"] = Matrix(n, k, kind, group, asym, act, &w);
  extra.ints["bias"] = Vector(bias);
  LinearInit(nullptr, nullptr, nullptr, &extra);
  const int64_t rows = 19;
  std::vector<float> x = Normals(static_cast<size_t>(rows * k)), y(static_cast<size_t>(rows * n)), one(static_cast<size_t>(n));
  Call call;
  call.Add(x.data(), {rows, k}, "float32");
  call.Add(arena.data(), {Bytes()}, "uint8");
  call.Add(y.data(), {rows, n}, "float32");
  Check(call.Run(Linear, &extra) == 0, "linear runs");
  double worst = 0, largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = bias[i], size = 0;
      for (int64_t j = 0; j < k; ++j) {
        double v = x[r * k + j];
        if (act) {
          const int64_t step = group ? group : k, begin = j / step * step, end = std::min(begin + step, k);
          float peak = 0;
          for (int64_t e = begin; e < end; ++e) peak = std::max(peak, std::fabs(x[r * k + e]));
          v = std::nearbyint(x[r * k + j] * (127.0f / peak)) * static_cast<double>(peak / 127.0f);
        }
        sum += v * w[i * k + j];
        size += std::fabs(v * w[i * k + j]);
      }
      worst = std::max(worst, std::fabs(sum - y[r * n + i]));
      largest = std::max(largest, size);
    }
    Call single;
    single.Add(x.data() + r * k, {1, k}, "float32");
    single.Add(arena.data(), {Bytes()}, "uint8");
    single.Add(one.data(), {1, n}, "float32");
    single.Run(Linear, &extra);
    Check(!std::memcmp(one.data(), y.data() + r * n, static_cast<size_t>(n) * 4), "a row alone equals the row among others");
  }
  Check(worst <= 2e-6 * largest, "linear is right");
  FakeExtra outside;
  outside.lists["weight"] = extra.lists["weight"];
  outside.lists["weight"][0] = Bytes() / 64 * 64;
  outside.ints["bias"] = -1;
  LinearInit(nullptr, nullptr, nullptr, &outside);
  Check(call.Run(Linear, &outside) == msms::kArena, "a weight outside the arena is refused");
}

struct Layer {
  int64_t hidden, heads, kv_heads, dim, inner;
  FakeExtra attention, mlp;
};
void MakeLayer(Layer &l, int64_t kind, int64_t group, int64_t act) {
  arena.clear();
  auto mat = [&](int64_t n, int64_t k) { return Matrix(n, k, kind, group, kind == 2, act); };
  auto ones = [&](int64_t n) { return Vector(std::vector<float>(static_cast<size_t>(n), 1.0f)); };
  const int64_t q = l.heads * l.dim, kv = l.kv_heads * l.dim;
  l.attention.ints = {{"layer", 1}, {"norm", ones(l.hidden)}};
  l.attention.floats = {{"eps", 1e-5f}, {"scale", 0.2f}};
  l.attention.lists = {{"heads", {l.heads, l.kv_heads, l.dim}}, {"wq", mat(q, l.hidden)}, {"wk", mat(kv, l.hidden)},
                       {"wv", mat(kv, l.hidden)}, {"wo", mat(l.hidden, q)}};
  l.attention.lists["biases"] = {Vector(Normals(static_cast<size_t>(q))), -1, Vector(Normals(static_cast<size_t>(kv))), -1};
  l.attention.lists["qk_norm"] = {ones(l.dim), ones(l.dim)};
  l.mlp.ints = {{"norm", ones(l.hidden)}};
  l.mlp.floats = {{"eps", 1e-5f}};
  l.mlp.lists = {{"gate", mat(l.inner, l.hidden)}, {"up", mat(l.inner, l.hidden)}, {"down", mat(l.hidden, l.inner)}, {"biases", {-1, -1, -1}}};
  AttentionBlockInit(nullptr, nullptr, nullptr, &l.attention);
  MlpBlockInit(nullptr, nullptr, nullptr, &l.mlp);
}

// Runs tokens [from, to) of each sequence as one ragged step; returns the block's rows, sequence after sequence.
struct Step {
  std::vector<int32_t> positions, slots, starts{0}, tables;
  std::vector<float> x, table, y;
  int64_t width = 0;
};
int RunStep(Layer &l, Step &s, void *cache, int64_t blocks, int64_t block, bool half) {
  const int64_t rows = static_cast<int64_t>(s.positions.size()), sequences = static_cast<int64_t>(s.starts.size()) - 1;
  s.y.assign(static_cast<size_t>(rows * l.hidden), 0);
  const int64_t padded = (l.dim + 15) / 16 * 16;
  Call c;
  c.Add(s.x.data(), {rows, l.hidden}, "float32");
  c.Add(s.table.data(), {rows, l.dim}, "float32");
  c.Add(arena.data(), {Bytes()}, "uint8");
  c.Add(cache, {2, blocks, 2, l.kv_heads, padded * block}, half ? "float16" : "float32");
  c.Add(s.positions.data(), {rows}, "int32");
  c.Add(s.slots.data(), {rows}, "int32");
  c.Add(s.starts.data(), {sequences + 1}, "int32");
  c.Add(s.tables.data(), {sequences, s.width}, "int32");
  c.Add(s.y.data(), {rows, l.hidden}, "float32");
  if (const int code = c.Run(AttentionBlock, &l.attention)) return code;
  Call m;
  m.Add(s.y.data(), {rows, l.hidden}, "float32");
  m.Add(arena.data(), {Bytes()}, "uint8");
  m.Add(s.y.data(), {rows, l.hidden}, "float32");
  return m.Run(MlpBlock, &l.mlp);
}

void TestBlocks(int64_t kind, int64_t group, int64_t act, int64_t dim, int64_t block, bool half) {
  Layer l{96, 6, 2, dim, 80, {}, {}};
  MakeLayer(l, kind, group, act);
  const int64_t lengths[3] = {5, 41, 18}, blocks = 16, padded = (dim + 15) / 16 * 16;
  const size_t cache_bytes = static_cast<size_t>(2 * blocks * 2 * l.kv_heads * padded * block) * (half ? 2 : 4);
  std::vector<std::vector<float>> x;
  for (int64_t n : lengths) x.push_back(Normals(static_cast<size_t>(n * l.hidden)));
  int32_t next = 0;
  std::vector<std::vector<int32_t>> tables(3, std::vector<int32_t>(4, -1));
  for (int s = 0; s < 3; ++s)
    for (int64_t j = 0; j * block < lengths[s]; ++j) tables[s][j] = (next++ * 5) % static_cast<int32_t>(blocks);
  auto add = [&](Step &step, int s, int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      step.positions.push_back(static_cast<int32_t>(t));
      step.slots.push_back(static_cast<int32_t>(tables[s][t / block] * block + t % block));
      step.x.insert(step.x.end(), x[s].begin() + t * l.hidden, x[s].begin() + (t + 1) * l.hidden);
      for (int64_t i = 0; i < dim; ++i) step.table.push_back(static_cast<float>(i < dim / 2 ? std::cos(0.1 * t * (i + 1)) : std::sin(0.1 * t * (i - dim / 2 + 1))));
    }
    step.starts.push_back(static_cast<int32_t>(step.positions.size()));
    step.tables.insert(step.tables.end(), tables[s].begin(), tables[s].end());
    step.width = 4;
  };
  // Unused slots hold NaN: nobody may read them.
  std::vector<uint8_t> cache(cache_bytes, 0xff), other(cache_bytes, 0xff);
  Step together;
  for (int s = 0; s < 3; ++s) add(together, s, 0, lengths[s]);
  Check(RunStep(l, together, cache.data(), blocks, block, half) == 0, "blocks run");
  for (float v : together.y)
    if (!std::isfinite(v)) return Check(false, "blocks give finite values beside unused slots");
  int64_t row = 0;
  for (int s = 0; s < 3; ++s) {
    for (int64_t from = 0; from < lengths[s];) {
      const int64_t to = std::min<int64_t>(lengths[s], from + 1 + static_cast<int64_t>(rng() % 7));
      Step chunk;
      add(chunk, s, from, to);
      RunStep(l, chunk, other.data(), blocks, block, half);
      Check(!std::memcmp(chunk.y.data(), together.y.data() + (row + from) * l.hidden, chunk.y.size() * 4), "chunks of one sequence equal the ragged batch");
      from = to;
    }
    row += lengths[s];
  }
  auto broken = [&](const std::function<void(Step &)> &damage, int code, const char *what) {
    Step bad = together;
    damage(bad);
    Check(RunStep(l, bad, cache.data(), blocks, block, half) == code, what);
  };
  broken([](Step &s) { s.slots[3] = -1; }, msms::kSlot, "a negative slot is refused");
  broken([](Step &s) { s.slots[3] = 1 << 30; }, msms::kSlot, "a slot past the cache is refused");
  broken([](Step &s) { s.tables[0] = 1 << 20; }, msms::kBlock, "a block past the cache is refused");
  broken([](Step &s) { s.tables[0] = -1; }, msms::kBlock, "a missing block is refused");
  broken([](Step &s) { s.positions[0] = -5; }, msms::kPosition, "a negative position is refused");
  broken([](Step &s) { s.positions[2] = 7; }, msms::kPosition, "positions with a gap are refused");
  broken([](Step &s) { s.positions[0] = 1 << 30; }, msms::kPosition, "a position past the table is refused");
  broken([](Step &s) { s.starts[1] = 1 << 30; }, msms::kStarts, "a start past the tokens is refused");
  broken([](Step &s) { s.starts[0] = 1; }, msms::kStarts, "a first start that is not 0 is refused");
}

void TestSmallOps() {
  const int64_t rows = 70, h = 345;
  std::vector<float> x = Normals(rows * h), w = Normals(h), up = Normals(rows * h), y(rows * h);
  FakeExtra norm;
  norm.floats["eps"] = 1e-6f;
  RmsNormInit(nullptr, nullptr, nullptr, &norm);
  Call c;
  c.Add(x.data(), {rows, h}, "float32");
  c.Add(w.data(), {h}, "float32");
  c.Add(y.data(), {rows, h}, "float32");
  Check(c.Run(RmsNorm, &norm) == 0, "norm runs");
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < h; ++i) sum += static_cast<double>(x[r * h + i]) * x[r * h + i];
    for (int64_t i = 0; i < h; ++i) worst = std::max(worst, std::fabs(x[r * h + i] * w[i] / std::sqrt(sum / h + 1e-6) - y[r * h + i]));
  }
  Check(worst < 1e-5, "norm is right");
  c.dims[1][0] = h - 1;
  Check(c.Run(RmsNorm, &norm) == msms::kShape, "a norm of another width is refused");
  Call s;
  x[3] = -200, x[4] = 200, x[5] = -1e30f;
  s.Add(x.data(), {rows, h}, "float32");
  s.Add(up.data(), {rows, h}, "float32");
  s.Add(y.data(), {rows, h}, "float32");
  Check(s.Run(Swiglu, &norm) == 0, "swiglu runs");
  worst = 0;
  for (int64_t i = 0; i < rows * h; ++i) {
    const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i];
    worst = std::max(worst, std::fabs(want - y[i]) / std::max(1.0, std::fabs(want)));
  }
  Check(worst < 1e-6, "swiglu is right");

  arena.clear();
  std::vector<float> values;
  FakeExtra table;
  table.lists["weight"] = Matrix(50, 96, 1, 32, 0, 1, &values);
  EmbeddingInit(nullptr, nullptr, nullptr, &table);
  std::vector<int32_t> ids = {0, 49, 17, 33, 16, 15};
  std::vector<float> rows_out(ids.size() * 96);
  Call e;
  e.Add(ids.data(), {6}, "int32");
  e.Add(arena.data(), {Bytes()}, "uint8");
  e.Add(rows_out.data(), {6, 96}, "float32");
  Check(e.Run(Embedding, &table) == 0, "embedding runs");
  for (size_t i = 0; i < ids.size(); ++i)
    Check(!std::memcmp(rows_out.data() + i * 96, values.data() + ids[i] * 96, 96 * 4), "embedding gives the row");
  for (int32_t bad : {-1, 50, 1 << 30}) {
    ids[2] = bad;
    Check(e.Run(Embedding, &table) == msms::kToken, "a token outside the vocabulary is refused");
  }
  FakeExtra missing;
  EmbeddingInit(nullptr, nullptr, nullptr, &missing);
  Check(e.Run(Embedding, &missing) == msms::kAttribute, "a missing attribute is refused");
  e.data.pop_back(), e.dims.pop_back(), e.types.pop_back();
  Check(e.Run(Embedding, &table) == msms::kCount, "a missing parameter is refused");
}

void TestAttention(int64_t dim, int64_t heads, int64_t kv_heads, int64_t rows, int64_t keys) {
  std::vector<float> q = Normals(static_cast<size_t>(2 * rows * heads * dim)), k = Normals(static_cast<size_t>(2 * keys * kv_heads * dim)),
                     v = Normals(k.size()), y(q.size());
  FakeExtra extra;
  extra.floats["scale"] = 0.3f;
  AttentionInit(nullptr, nullptr, nullptr, &extra);
  Call c;
  c.Add(q.data(), {2, rows, heads, dim}, "float32");
  c.Add(k.data(), {2, keys, kv_heads, dim}, "float32");
  c.Add(v.data(), {2, keys, kv_heads, dim}, "float32");
  c.Add(y.data(), {2, rows, heads, dim}, "float32");
  Check(c.Run(Attention, &extra) == 0, "attention runs");
  double worst = 0;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t n = keys - rows + t + 1, g = h / (heads / kv_heads);
        std::vector<double> p(static_cast<size_t>(n));
        double sum = 0, peak = -1e300;
        for (int64_t j = 0; j < n; ++j) {
          double s = 0;
          for (int64_t i = 0; i < dim; ++i) s += static_cast<double>(q[((b * rows + t) * heads + h) * dim + i]) * k[((b * keys + j) * kv_heads + g) * dim + i];
          p[j] = s * 0.3f;
          peak = std::max(peak, p[j]);
        }
        for (double &s : p) sum += s = std::exp(s - peak);
        for (int64_t i = 0; i < dim; ++i) {
          double o = 0;
          for (int64_t j = 0; j < n; ++j) o += p[j] / sum * v[((b * keys + j) * kv_heads + g) * dim + i];
          worst = std::max(worst, std::fabs(o - y[((b * rows + t) * heads + h) * dim + i]));
        }
      }
  Check(worst < 2e-5, "attention is right");
}
}  // namespace

int main() {
  for (const char *isa : {"portable", "avx2", "avx512"}) {
    if (MsmsSetIsa(isa)) {
      std::printf("%s: not on this processor\n", isa);
      continue;
    }
    const int before = checks.load();
    for (int threads : {1, 3}) {
      MsmsSetThreads(threads);
      TestSmallOps();
      for (int64_t act : {0, 1}) {
        TestLinear(50, 100, 1, 0, 0, act);
        TestLinear(33, 70, 1, 32, 0, act);
        for (int64_t group : {32, 64, 128})
          for (int64_t asym : {0, 1}) TestLinear(40, 200, 2, group, asym, act);
      }
      TestLinear(37, 77, 0, 0, 0, 0);
      TestAttention(40, 6, 2, 9, 30);
      TestAttention(64, 3, 3, 17, 17);
      TestAttention(256, 12, 1, 3, 70);
      TestBlocks(0, 0, 0, 32, 16, false);
      TestBlocks(2, 32, 1, 40, 32, true);
      TestBlocks(1, 0, 1, 64, 64, true);
      TestBlocks(2, 64, 0, 32, 32, false);
    }
    std::printf("%s: %d checks\n", isa, checks.load() - before);
  }
  // Two callers at once, then a child process: neither may hang or differ.
  std::thread other([] {
    for (int i = 0; i < 20; ++i) TestAttention(64, 4, 2, 20, 40);
  });
  for (int i = 0; i < 20; ++i) TestAttention(32, 6, 2, 30, 50);
  other.join();
  const pid_t child = fork();
  if (child == 0) {
    TestAttention(64, 4, 2, 20, 40);
    _exit(failures ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child computes");
  std::printf("%d passed, %d failed\n", checks.load() - failures.load(), failures.load());
  return failures ? 1 : 0;
}
