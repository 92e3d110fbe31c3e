// Part of kernels_flash.inl. Scores are computed again as [query][key]: keys are lanes, so that only the keys and
// values of a block are turned, once for all queries, and every product reads its factors as they lie.
constexpr int64_t kSpan = kKeys;  // queries of a block
constexpr int64_t kTiles = kSpan / kStep;

// One block of keys with its gradients, one block of queries, and what lies between them.
struct Work {
  float *keys_t, *values_t;   // [padded][kKeys]
  float *keys, *dk, *dv;      // [kKeys][padded]
  float *q, *dy;              // [kSpan][padded]
  float *p, *ds;              // [kSpan][kKeys] probabilities and score gradients
  int64_t lo[kTiles], hi[kTiles], tiles;  // keys that some query of an eight sees
};

inline int64_t BackwardScratch(const FlashShape &s) { return 7 * kKeys * s.padded() + 2 * kSpan * kKeys; }

void Prepare(const FlashBackward &f, int64_t b, int64_t t) {
  const FlashShape &s = f.s;
  const int64_t row = (b * s.rows + t) * s.heads * s.dim;
  for (int64_t h = 0; h < s.heads; ++h) {
    const float *dy = f.dy + row + h * s.dim, *y = f.y + row + h * s.dim;
    F16 sum = {};
    int64_t d = 0;
    for (; d + 16 <= s.dim; d += 16) sum = Fma(Load(dy + d), Load(y + d), sum);
    if (const int n = static_cast<int>(s.dim - d)) sum = Fma(LoadPart(dy + d, n), LoadPart(y + d, n), sum);
    const int64_t at = (b * s.heads + h) * s.rows + t;
    f.bias[at] = f.lse[at] * kLog2e;
    f.delta[at] = Sum(sum) * s.scale;
  }
  std::memset(f.dq + row, 0, static_cast<size_t>(s.heads * s.dim) * sizeof(float));
}

// Which keys each eight of queries sees; false when none sees any. `masked`: some query does not see all of its eight's.
inline bool PairRanges(const FlashShape &s, int64_t b, int64_t t0, int64_t rows, int64_t k0, Work *w, bool *partial) {
  bool any = false;
  *partial = false;
  w->tiles = (rows + kStep - 1) / kStep;
  for (int64_t i = 0; i < w->tiles; ++i) {
    const int64_t first = t0 + i * kStep, last = Least(first + kStep, t0 + rows) - 1;
    int64_t low = s.Start(b, first), high = low;
    for (int64_t t = first + 1; t <= last; ++t) low = Least(low, s.Start(b, t)), high = Most(high, s.Start(b, t));
    w->lo[i] = Most(0, low - k0) / kStep * kStep;
    w->hi[i] = Most(0, Least(kKeys, (last + s.past() - k0) / kStep * kStep + kStep));
    if (last + s.past() < k0) w->hi[i] = 0;
    if (w->lo[i] < w->hi[i]) any = true;
    if (high > k0 || first + s.past() < k0 + kKeys - 1) *partial = true;
  }
  return any;
}

// Probabilities and score gradients of eight queries and 32 keys, in the layout [kSpan][kKeys].
inline void PairTile(const FlashBackward &f, int64_t b, int64_t head, int64_t t0, int64_t rows, int64_t k0, int64_t row, int64_t column,
                     bool partial, const Work &w) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded(), at = (b * s.heads + head) * s.rows + t0;
  const F16 factor = Spread(s.scale * kLog2e), scale = Spread(s.scale), keep = Spread(s.keep);
  const msms::DropRow drop = s.threshold ? msms::DropHead(s, b, head) : msms::DropRow{0, 0};
  for (int64_t first = row; first < row + kStep; first += kR) {
    for (int u = 0; u < 2; u += kV) {
      const int64_t key = column + 16 * u;
      F16 acc[kR][kV];
      Clear(acc);
      Multiply<true, kR, kV>(w.q + first * padded, padded, w.keys_t + key, kKeys, s.dim, acc);
      for (int r = 0; r < kR; ++r) {
        const int64_t t = first + r;
        const F16 bias = Spread(t < rows ? f.bias[at + t] : 1e30f);  // 2^-infinity: a row of padding has no part in a sum
        for (int v = 0; v < kV; ++v) Store(w.p + t * kKeys + key + 16 * v, Exp2(Fma(acc[r][v], factor, -bias)));
      }
      F16 grad[kR][kV];
      Clear(grad);
      Multiply<true, kR, kV>(w.dy + first * padded, padded, w.values_t + key, kKeys, s.dim, grad);
      for (int r = 0; r < kR; ++r) {
        const int64_t t = first + r;
        const F16 delta = Spread(t < rows ? f.delta[at + t] : 0.0f);
        const msms::DropRow bits = s.threshold ? msms::DropQuery(drop, t0 + t) : drop;
        for (int v = 0; v < kV; ++v) {
          const int64_t place = t * kKeys + key + 16 * v;
          const I16 lane = Lanes() + SpreadInt(key + 16 * v);
          F16 p = Load(w.p + place), dp = grad[r][v];
          I16 hidden = {};
          if (partial && t < rows) {
            hidden = (lane > SpreadInt(t0 + t + s.past() - k0)) | (lane < SpreadInt(s.Start(b, t0 + t) - k0));
            p = Without(p, hidden);
            Store(w.p + place, p);
          }
          if (s.threshold) {
            const I16 dropped = Dropped(W16{} + bits.a, W16{} + bits.b, (W16)(lane + SpreadInt(k0)), s.threshold);
            dp = Without(dp * keep, dropped);
            Store(w.p + place, Without(p * keep, dropped));
          }
          F16 ds = p * Fma(dp, scale, -delta);
          if (partial) ds = Without(ds, hidden);
          Store(w.ds + place, ds);
        }
      }
    }
  }
}

// to[r][.] += sum over i of a(i, r) * b[i][.], both [depth][padded] but a, whose rows are kKeys apart.
template <int V>
inline void AddColumns(const float *a, const float *b, int64_t depth, int64_t padded, float *to) {
  for (int64_t r0 = 0; r0 < kStep; r0 += kR) {
    F16 acc[kR][V];
    for (int r = 0; r < kR; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] = Load(to + (r0 + r) * padded + 16 * v);
    Multiply<false, kR, V>(a + r0, kKeys, b, padded, depth, acc);
    for (int r = 0; r < kR; ++r)
      for (int v = 0; v < V; ++v) Store(to + (r0 + r) * padded + 16 * v, acc[r][v]);
  }
}

// dq rows [0, n), `stride` apart, += ds [.][depth] * keys [depth][padded], columns from d.
template <int V>
inline void AddRows(const float *ds, const float *keys, int64_t depth, const FlashShape &s, int64_t d, int64_t n, float *dq) {
  for (int64_t r0 = 0; r0 < n; r0 += kR) {
    F16 acc[kR][V];
    Clear(acc);
    Multiply<true, kR, V>(ds + r0 * kKeys, kKeys, keys + d, s.padded(), depth, acc);
    for (int r = 0; r < kR && r0 + r < n; ++r) {
      for (int v = 0; v < V; ++v) {
        float *to = dq + (r0 + r) * s.heads * s.dim + d + 16 * v;
        const int64_t left = s.dim - d - 16 * v;
        if (left >= 16) Store(to, Load(to) + acc[r][v]);
        else StorePart(to, LoadPart(to, static_cast<int>(left)) + acc[r][v], static_cast<int>(left));
      }
    }
  }
}

inline void Pair(const FlashBackward &f, int64_t b, int64_t head, int64_t t0, int64_t rows, int64_t k0, bool partial, const Work &w) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded(), from = ((b * s.rows + t0) * s.heads + head) * s.dim, stride = s.heads * s.dim;
  CopyRows(f.q + from, stride, rows, w.tiles * kStep, s.dim, padded, 1.0f, w.q);
  CopyRows(f.dy + from, stride, rows, w.tiles * kStep, s.dim, padded, 1.0f, w.dy);
  for (int64_t column = 0; column < kKeys; column += kPanel) {
    for (int64_t i = 0; i < w.tiles; ++i) {
      if (w.lo[i] < column + kPanel && w.hi[i] > column && w.lo[i] < w.hi[i]) {
        PairTile(f, b, head, t0, rows, k0, i * kStep, column, partial, w);
        continue;
      }
      for (int64_t r = i * kStep; r < (i + 1) * kStep; ++r)
        for (int64_t c = column; c < column + kPanel; c += 16) Store(w.p + r * kKeys + c, F16{}), Store(w.ds + r * kKeys + c, F16{});
    }
  }
  for (int64_t c = 0; c < kKeys; c += kStep) {
    int64_t begin = w.tiles, end = 0;
    for (int64_t i = 0; i < w.tiles; ++i)
      if (w.lo[i] <= c && w.hi[i] > c) begin = Least(begin, i), end = i + 1;
    if (begin >= end) continue;
    const int64_t skip = begin * kStep, depth = (end - begin) * kStep, to = c * padded;
    int64_t d = 0;
    for (; d + 16 * kV <= padded; d += 16 * kV) {
      AddColumns<kV>(w.p + skip * kKeys + c, w.dy + skip * padded + d, depth, padded, w.dv + to + d);
      AddColumns<kV>(w.ds + skip * kKeys + c, w.q + skip * padded + d, depth, padded, w.dk + to + d);
    }
    for (; d < padded; d += 16) {
      AddColumns<1>(w.p + skip * kKeys + c, w.dy + skip * padded + d, depth, padded, w.dv + to + d);
      AddColumns<1>(w.ds + skip * kKeys + c, w.q + skip * padded + d, depth, padded, w.dk + to + d);
    }
  }
  for (int64_t i = 0; i < w.tiles; ++i) {
    if (w.lo[i] >= w.hi[i]) continue;
    const int64_t row = i * kStep, n = Least(kStep, rows - row), depth = w.hi[i] - w.lo[i];
    const float *ds = w.ds + row * kKeys + w.lo[i], *keys = w.keys + w.lo[i] * padded;
    float *dq = f.dq + from + row * stride;
    int64_t d = 0;
    for (; d + 16 * kV <= padded; d += 16 * kV) AddRows<kV>(ds, keys, depth, s, d, n, dq);
    for (; d < padded; d += 16) AddRows<1>(ds, keys, depth, s, d, n, dq);
  }
}

void Backward(const FlashBackward &f, int64_t b, int64_t kv, int64_t j, int64_t begin, int64_t end, bool fresh, float *scratch) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded(), size = kKeys * padded, k0 = j * kKeys, n = Least(kKeys, s.keys - k0);
  const int64_t from = ((b * s.keys + k0) * s.kv_heads + kv) * s.dim, stride = s.kv_heads * s.dim;
  Work w = {scratch, scratch + size, scratch + 2 * size, scratch + 3 * size, scratch + 4 * size, scratch + 5 * size, scratch + 6 * size,
            scratch + 7 * size, scratch + 7 * size + kSpan * kKeys, {}, {}, 0};
  bool opened = false;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t0 = i * kSpan, rows = Least(kSpan, s.rows - t0);
    bool partial = false;
    if (!PairRanges(s, b, t0, rows, k0, &w, &partial)) continue;
    if (!opened) {
      opened = true;
      CopyRows(f.v + from, stride, n, kKeys, s.dim, padded, 1.0f, w.keys);
      for (int64_t r = 0; r < kKeys; r += 16)
        for (int64_t d = 0; d < padded; d += 16) Transpose16(w.keys + r * padded + d, padded, w.values_t + d * kKeys + r, kKeys);
      CopyRows(f.k + from, stride, n, kKeys, s.dim, padded, 1.0f, w.keys);
      for (int64_t r = 0; r < kKeys; r += 16)
        for (int64_t d = 0; d < padded; d += 16) Transpose16(w.keys + r * padded + d, padded, w.keys_t + d * kKeys + r, kKeys);
      CopyRows(f.dk + from, stride, fresh ? 0 : n, kKeys, s.dim, padded, 1.0f, w.dk);
      CopyRows(f.dv + from, stride, fresh ? 0 : n, kKeys, s.dim, padded, 1.0f, w.dv);
    }
    for (int64_t g = 0; g < s.group(); ++g) Pair(f, b, kv * s.group() + g, t0, rows, k0, partial, w);
  }
  if (!opened && !fresh) return;
  if (!opened) std::memset(w.dk, 0, static_cast<size_t>(2 * size) * sizeof(float));
  for (int64_t r = 0; r < n; ++r) {
    StoreRow(f.dk + from + r * stride, w.dk + r * padded, s.dim, 1.0f);
    StoreRow(f.dv + from + r * stride, w.dv + r * padded, s.dim, 1.0f);
  }
}
