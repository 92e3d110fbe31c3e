// Rows times packed weights: activations are packed once for every layout that the weights ask for.
#pragma once
#include <algorithm>

#include "args.h"

namespace msms {
constexpr int64_t kChunk = 256;  // rows of an operator that are worked on at a time: keeps activations in the L2 cache

// The activations of one set of rows in up to three layouts (as different weights may read them).
class ActSet {
 public:
  ActSet(Carver &carver, int64_t rows, std::initializer_list<const Weight *> weights) {
    const int64_t m = std::max<int64_t>(1, std::min(rows, kTile)), tiles = (rows + m - 1) / m;
    for (const Weight *w : weights) {
      if (Find(*w) >= 0 || used_ == 3) continue;
      Acts &a = acts_[used_++];
      a.rows = rows, a.k = w->k, a.kp = w->kp, a.m = m;
      if (!w->act) {
        a.f = carver.Take<float>(tiles * m * w->k);
      } else {
        a.group = w->group, a.groups = w->groups;
        a.q = carver.Take<int8_t>(tiles * m * w->kp);
        a.scale = carver.Take<float>(tiles * m * w->groups);
        a.sum = carver.Take<float>(tiles * m * w->groups);
        a.isum = carver.Take<int32_t>(tiles * m * w->groups);
      }
    }
  }
  const Acts &For(const Weight &w) const { return acts_[Find(w)]; }
  void Pack(const float *x, int64_t row) const {
    for (int i = 0; i < used_; ++i) acts_[i].quantized() ? Active().pack_int8(x, row, acts_[i]) : Active().pack_float(x, row, acts_[i]);
  }

 private:
  int Find(const Weight &w) const {
    for (int i = 0; i < used_; ++i)
      if (acts_[i].quantized() == (w.act == 1) && (!w.act || acts_[i].group == w.group)) return i;
    return -1;
  }
  Acts acts_[3];
  int used_ = 0;
};

// Packs rows [0, count); source(row, thread) yields each, perhaps in a buffer of the thread's own.
template <class Source>
void PackRows(Pool &pool, const ActSet &acts, int64_t count, Source source) {
  pool.For(count, kTile, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t r = begin; r < end; ++r) acts.Pack(source(r, thread), r);
  });
}

// Floats that one thread needs to expand two panels of a scheme with float activations.
inline int64_t PanelScratch(std::initializer_list<const Weight *> weights) {
  int64_t most = 0;
  for (const Weight *w : weights)
    if (w->kind != kF32 && !w->act) most = std::max(most, w->k * 32);
  return most;
}

// How many of `panels` panels to hand out at a time. With few rows the weights stream from memory, and long runs keep
// the stream going; with many rows arithmetic decides, and small pieces let all threads end together.
inline int64_t Piece(int64_t panels, const Weight &w, int64_t rows, int threads) {
  if (rows <= kTile) return std::max<int64_t>(1, (panels + threads * 3 - 1) / (threads * 3));
  return std::max<int64_t>(2, (int64_t{1} << 15) / w.panel_bytes / 2 * 2);  // whole pairs
}

// One panel or two neighbours into `tile` ([rows][32]), then `store(row, first_column, columns, values)` for each row.
template <class StoreRow>
void PanelRows(const Weight &w, const uint8_t *arena, int64_t p, int count, const Acts &acts, const float *bias, float *tile, float *scratch,
               StoreRow store) {
  Active().panels(w, w.Panel(arena, p), count, acts, tile, 32, scratch);
  const int64_t first = p * 16, columns = std::min<int64_t>(16 * count, w.n - first);
  for (int64_t r = 0; r < acts.rows; ++r) {
    float *values = tile + r * 32;
    if (bias)
      for (int64_t j = 0; j < columns; ++j) values[j] += bias[first + j];
    store(r, first, columns, values);
  }
}

// Calls body(panel, count) for [begin, end) by two, and one when one is left.
template <class Body>
void ByTwo(int64_t begin, int64_t end, Body body) {
  for (int64_t p = begin; p < end; p += 2) body(p, p + 1 < end ? 2 : 1);
}
}  // namespace msms
