// The paged key/value cache and the ragged batch that reads it, with every index checked.
#pragma once
#include "linear.h"

namespace msms {
// cache [layers, blocks, 2, kv heads, D16 * block]: keys [D16][block] (positions are lanes), values [block][D16].
struct Cache {
  uint8_t *base = nullptr;
  int64_t blocks = 0, heads = 0, block = 0, dim = 0, padded = 0, bytes = 4;
  bool half = false;
  int64_t head_bytes() const { return padded * block * bytes; }
  int64_t block_bytes() const { return 2 * heads * head_bytes(); }
  uint8_t *Keys(int64_t id, int64_t head) const { return base + id * block_bytes() + head * head_bytes(); }
  int64_t value_bytes() const { return heads * head_bytes(); }
};

struct Ragged {
  const int32_t *positions, *slots, *starts, *tables;
  int64_t tokens, sequences, width, longest = 0;
};

inline int OpenCache(const Args &a, int i, int64_t layer, int64_t heads, int64_t dim, Cache *c) {
  if (a.Rank(i) != 5) return kShape;
  c->half = a.Is(i, "float16");
  if (!c->half && !a.Is(i, "float32")) return kType;
  c->bytes = c->half ? 2 : 4;
  c->heads = heads, c->dim = dim, c->padded = (dim + 15) / 16 * 16;
  c->blocks = a.Dim(i, 1), c->block = a.Dim(i, 4) / c->padded;
  if (a.Dim(i, 2) != 2 || a.Dim(i, 3) != heads || a.Dim(i, 4) != c->block * c->padded) return kShape;
  if (c->block != 16 && c->block != 32 && c->block != 64) return kShape;
  if (layer < 0 || layer >= a.Dim(i, 0)) return kAttribute;
  c->base = a.Bytes(i) + layer * c->blocks * c->block_bytes();
  return kOk;
}

// Inputs i.. are positions [T], slots [T], seq_starts [S+1], block_tables [S, M].
inline int OpenRagged(const Args &a, int i, int64_t tokens, const Cache &c, Ragged *b) {
  if (!a.Is(i, "int32", 1) || !a.Is(i + 1, "int32", 1) || !a.Is(i + 2, "int32", 1) || !a.Is(i + 3, "int32", 2)) return kType;
  *b = {a.I(i), a.I(i + 1), a.I(i + 2), a.I(i + 3), tokens, a.Dim(i + 2, 0) - 1, a.Dim(i + 3, 1)};
  if (a.Dim(i, 0) != tokens || a.Dim(i + 1, 0) != tokens || b->sequences < 0 || a.Dim(i + 3, 0) != b->sequences) return kShape;
  if (b->starts[0] != 0 || b->starts[b->sequences] != tokens) return kStarts;
  for (int64_t s = 0; s < b->sequences; ++s) {
    const int64_t begin = b->starts[s], end = b->starts[s + 1];
    if (end < begin || end > tokens) return kStarts;
    if (begin == end) continue;
    const int32_t *table = b->tables + s * b->width;
    const int64_t first = b->positions[begin], last = first + (end - begin) - 1;
    if (first < 0 || last >= b->width * c.block) return kPosition;
    for (int64_t j = 0; j <= last / c.block; ++j)
      if (table[j] < 0 || table[j] >= c.blocks) return kBlock;
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = first + (t - begin);
      if (b->positions[t] != at) return kPosition;
      if (b->slots[t] != table[at / c.block] * c.block + at % c.block) return kSlot;
    }
    b->longest = std::max(b->longest, last + 1);
  }
  return kOk;
}

inline bool HeadsMakeSense(int64_t heads, int64_t kv_heads, int64_t dim) {
  return heads >= 1 && kv_heads >= 1 && heads <= 4096 && heads % kv_heads == 0 && dim >= 2 && dim <= 256;
}
// Floats of one row of scores: whole pairs of lanes, and rows that start on different cache sets.
inline int64_t ScoreStride(int64_t longest) { return (longest + 31) / 32 * 32 + 16; }

// Query rows that share keys, as work for one thread: tokens [begin, end) of a sequence and heads of one kv head.
struct Job {
  int32_t sequence, begin, end, kv_head, head_begin, head_end;
};

// The jobs of rows [first, first + count): about eight query rows each, single rows when there is little to share out.
std::vector<Job> PlanJobs(const Ragged &b, int64_t first, int64_t count, int64_t heads, int64_t kv_heads, int threads);

// Attends for one job; q and out rows have the given strides, row 0 being token `first`.
void RunJob(const Job &job, const Ragged &b, const Cache &c, const float *q, int64_t q_stride, float *out,
            int64_t out_stride, int64_t first, float scale, float *scores, int64_t score_stride);
}  // namespace msms
