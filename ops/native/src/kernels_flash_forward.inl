// Part of kernels_flash.inl. Scores are held as [key][query]: queries are lanes, so that maxima and sums cross none,
// and keys and values are read as they lie.
struct Panel {
  int64_t head, first, rows, low, high;  // queries [first, first + rows) of a head; the least and greatest of their starts
  float *queries, *out, *peak, *sum;     // [dim][kPanel] times scale, [padded][kPanel], [kPanel], [kPanel]
};

inline int64_t ForwardScratch(const FlashShape &s) {
  const int64_t padded = s.padded();
  return 2 * kKeys * padded + kKeys * kPanel + msms::kFlashHeads * kPanel * (2 * padded + 2);
}

inline void OpenPanel(const FlashForward &f, int64_t b, const Panel &p, float *spare) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded();
  const float *q = f.q + ((b * s.rows + p.first) * s.heads + p.head) * s.dim;
  CopyRows(q, s.heads * s.dim, p.rows, kPanel, s.dim, padded, s.scale * kLog2e, spare);
  for (int64_t r = 0; r < kPanel; r += 16)
    for (int64_t d = 0; d < padded; d += 16) Transpose16(spare + r * padded + d, padded, p.queries + d * kPanel + r, kPanel);
  std::memset(p.out, 0, static_cast<size_t>(padded * kPanel) * sizeof(float));
  for (int64_t i = 0; i < kPanel; ++i) p.peak[i] = -1e30f, p.sum[i] = 0;  // finite, so that a row without a key yet is not NaN
}

// Scores of keys [lo, hi) and their maxima; what a query does not see is -infinity.
inline void PanelScores(const FlashShape &s, int64_t b, const Panel &p, int64_t k0, int64_t lo, int64_t hi, const float *keys,
                        float *scores, F16 (&top)[2]) {
  const int64_t padded = s.padded(), limit = p.first + s.past() - k0;
  const bool masked = limit < hi - 1 || p.high > k0 + lo;
  I16 last[2], begin[2] = {};
  for (int u = 0; u < 2; ++u) last[u] = Lanes() + SpreadInt(limit + 16 * u);
  if (masked && s.starts) {
    int32_t starts[kPanel] = {};
    for (int64_t i = 0; i < p.rows; ++i) starts[i] = static_cast<int32_t>(s.Start(b, p.first + i) - k0);
    std::memcpy(begin, starts, sizeof(starts));
  } else {
    begin[0] = begin[1] = SpreadInt(-k0);
  }
  const I16 infinity = (I16)Spread(-std::numeric_limits<float>::infinity());
  for (int64_t key = lo; key < hi; key += kR) {
    for (int u = 0; u < 2; u += kV) {
      F16 acc[kR][kV];
      Clear(acc);
      Multiply<true, kR, kV>(keys + key * padded, padded, p.queries + 16 * u, kPanel, s.dim, acc);
      for (int r = 0; r < kR; ++r) {
        for (int v = 0; v < kV; ++v) {
          if (masked) {
            const I16 at = SpreadInt(key + r), hidden = (last[u + v] < at) | (begin[u + v] > at);
            acc[r][v] = (F16)(((I16)acc[r][v] & ~hidden) | (infinity & hidden));
          }
          top[u + v] = Max(acc[r][v], top[u + v]);
          Store(scores + (key + r) * kPanel + 16 * (u + v), acc[r][v]);
        }
      }
    }
  }
}

// Scores into probabilities in units of the running maximum; `shrink` brings earlier sums to it.
inline void PanelSoftmax(const FlashShape &s, int64_t b, const Panel &p, int64_t k0, int64_t lo, int64_t hi, float *scores,
                         const F16 (&top)[2], F16 (&shrink)[2]) {
  W16 a[2] = {}, c[2] = {};
  if (s.threshold) {
    const msms::DropRow head = msms::DropHead(s, b, p.head);
    for (int64_t i = 0; i < kPanel; ++i) {
      const msms::DropRow row = msms::DropQuery(head, p.first + i);
      a[i / 16][i % 16] = row.a, c[i / 16][i % 16] = row.b;
    }
  }
  for (int u = 0; u < 2; ++u) {
    const F16 before = Load(p.peak + 16 * u), now = Max(top[u], before);
    shrink[u] = Exp2(before - now);
    F16 sum = Load(p.sum + 16 * u) * shrink[u];
    for (int64_t key = lo; key < hi; ++key) {
      float *at = scores + key * kPanel + 16 * u;
      F16 e = Exp2(Load(at) - now);
      sum += e;
      if (s.threshold) e = Without(e, Dropped(a[u], c[u], W16{} + static_cast<uint32_t>(k0 + key), s.threshold));
      Store(at, e);
    }
    Store(p.peak + 16 * u, now);
    Store(p.sum + 16 * u, sum);
  }
}

inline void PanelBlock(const FlashShape &s, int64_t b, const Panel &p, int64_t k0, const float *keys, const float *values, float *scores) {
  const int64_t padded = s.padded(), end = p.first + p.rows + s.past() - k0;  // keys that the last query sees
  if (end <= 0 || p.low >= k0 + kKeys) return;
  const int64_t lo = Most(0, p.low - k0) / kStep * kStep, hi = Least(kKeys, (end + kStep - 1) / kStep * kStep);
  F16 top[2], shrink[2];
  top[0] = top[1] = Spread(-1e30f);
  PanelScores(s, b, p, k0, lo, hi, keys, scores, top);
  PanelSoftmax(s, b, p, k0, lo, hi, scores, top, shrink);
  for (int64_t d = 0; d < padded; d += kR) {
    for (int u = 0; u < 2; u += kV) {
      F16 acc[kR][kV];
      for (int r = 0; r < kR; ++r)
        for (int v = 0; v < kV; ++v) acc[r][v] = Load(p.out + (d + r) * kPanel + 16 * (u + v)) * shrink[u + v];
      Multiply<false, kR, kV>(values + lo * padded + d, padded, scores + lo * kPanel + 16 * u, kPanel, hi - lo, acc);
      for (int r = 0; r < kR; ++r)
        for (int v = 0; v < kV; ++v) Store(p.out + (d + r) * kPanel + 16 * (u + v), acc[r][v]);
    }
  }
}

inline void ClosePanel(const FlashForward &f, int64_t b, const Panel &p, float *spare) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded();
  for (int64_t r = 0; r < kPanel; r += 16)
    for (int64_t d = 0; d < padded; d += 16) Transpose16(p.out + d * kPanel + r, kPanel, spare + r * padded + d, padded);
  for (int64_t r = 0; r < p.rows; ++r) {
    StoreRow(f.y + ((b * s.rows + p.first + r) * s.heads + p.head) * s.dim, spare + r * padded, s.dim, s.keep / p.sum[r]);
    f.lse[(b * s.heads + p.head) * s.rows + p.first + r] = (p.peak[r] + std::log2(p.sum[r])) * kLn2;
  }
}

void Forward(const FlashForward &f, int64_t b, int64_t head, int64_t head_end, int64_t begin, int64_t end, float *scratch) {
  const FlashShape &s = f.s;
  const int64_t padded = s.padded(), kv = head / s.group();
  float *keys = scratch, *values = keys + kKeys * padded, *scores = values + kKeys * padded, *state = scores + kKeys * kPanel;
  Panel panels[msms::kFlashHeads];
  int64_t count = 0, low = s.keys;
  for (int64_t h = head; h < head_end; ++h) {
    for (int64_t t = begin; t < end; t += kPanel) {
      Panel &p = panels[count++];
      p = {h, t, Least(kPanel, end - t), s.Start(b, t), s.Start(b, t), state, nullptr, nullptr, nullptr};
      for (int64_t i = 1; i < p.rows; ++i) p.low = Least(p.low, s.Start(b, t + i)), p.high = Most(p.high, s.Start(b, t + i));
      p.out = p.queries + padded * kPanel, p.peak = p.out + padded * kPanel, p.sum = p.peak + kPanel;
      state = p.sum + kPanel;
      low = Least(low, p.low);
      OpenPanel(f, b, p, keys);
    }
  }
  for (int64_t k0 = low / kKeys * kKeys; k0 < end + s.past(); k0 += kKeys) {
    const int64_t n = Least(kKeys, s.keys - k0), from = ((b * s.keys + k0) * s.kv_heads + kv) * s.dim;
    CopyRows(f.k + from, s.kv_heads * s.dim, n, kKeys, s.dim, padded, 1.0f, keys);
    CopyRows(f.v + from, s.kv_heads * s.dim, n, kKeys, s.dim, padded, 1.0f, values);
    for (int64_t i = 0; i < count; ++i) PanelBlock(s, b, panels[i], k0, keys, values, scores);
  }
  for (int64_t i = 0; i < count; ++i) ClosePanel(f, b, panels[i], keys);
}
