// Attention for training: forward and backward without a matrix of all scores (Dao, FlashAttention-2, 2023).
// Blocks of keys begin at multiples of kFlashKeys and panels of queries at multiples of kFlashLanes, whatever else is
// in the batch: a document's result depends on where in these it begins, on nothing beside it.
#pragma once
#include <cstdint>

namespace msms {
constexpr int64_t kFlashKeys = 64, kFlashLanes = 32;
constexpr int64_t kFlashHeads = 8;  // query heads that share the reading of a block of keys

struct FlashShape {
  int64_t batch = 0, rows = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;
  float scale = 1;
  const int32_t *starts = nullptr;  // [batch, rows] first key that a query sees
  uint32_t threshold = 0;           // a probability is dropped where its 24 random bits lie below; 0: none is
  float keep = 1;                   // what is kept is multiplied by
  uint32_t seed[2] = {0, 0};
  int64_t group() const { return heads / kv_heads; }
  int64_t past() const { return keys - rows; }
  int64_t padded() const { return (dim + 15) / 16 * 16; }
  int64_t Start(int64_t b, int64_t t) const { return starts ? starts[b * rows + t] : 0; }
};

struct FlashForward {
  FlashShape s;
  const float *q, *k, *v;
  float *y, *lse;  // [batch, rows, heads, dim], [batch, heads, rows]
};
struct FlashBackward {
  FlashShape s;
  const float *dy, *q, *k, *v, *y, *lse;
  float *bias, *delta;  // [batch, heads, rows]: lse in powers of 2; scale times the sum of dy * y
  float *dq, *dk, *dv;
};

struct FlashKernels {
  // Floats of scratch that one thread needs.
  int64_t (*forward_scratch)(const FlashShape &s);
  int64_t (*backward_scratch)(const FlashShape &s);
  // Queries [begin, end) of heads [head, head_end) that share a key head; at most kFlashHeads panels in all.
  void (*forward)(const FlashForward &f, int64_t b, int64_t head, int64_t head_end, int64_t begin, int64_t end, float *scratch);
  // bias and delta of a row and zeros in its dq.
  void (*prepare)(const FlashBackward &f, int64_t b, int64_t t);
  // Block j of keys against blocks [begin, end) of as many queries: adds to dq, and to dk and dv unless `fresh`.
  void (*backward)(const FlashBackward &f, int64_t b, int64_t kv_head, int64_t j, int64_t begin, int64_t end, bool fresh, float *scratch);
};

// Random bits of the dropped probabilities: a function of (seed, batch row, head, query, key) alone. Scramble is the
// integer hash "lowbias32" of Wellons (2018); the two words of a row keep rows apart that one word would confuse.
inline uint32_t Scramble(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
struct DropRow {
  uint32_t a, b;
};
inline DropRow DropHead(const FlashShape &s, int64_t b, int64_t head) {
  DropRow r;
  uint32_t *words[2] = {&r.a, &r.b};
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t seed = Scramble(Scramble(s.seed[0] + 0x9e3779b9u * (i + 1)) + s.seed[1]);
    *words[i] = Scramble(Scramble(seed + static_cast<uint32_t>(b)) + static_cast<uint32_t>(head));
  }
  return r;
}
inline DropRow DropQuery(DropRow head, int64_t t) {
  return {Scramble(head.a + static_cast<uint32_t>(t)), Scramble(head.b + static_cast<uint32_t>(t))};
}
}  // namespace msms
