// The functions that each instruction set provides, and the activations they read.
#pragma once
#include <cstdint>

#include "weight.h"

namespace msms {
// Rows of activations laid out together; threads share out whole tiles, so that none writes into another's lines.
constexpr int64_t kTile = 12;

// Rows of activations, laid out for the panels: tile r / m holds row r at lane r % m, m = min(rows, kTile).
struct Acts {
  int64_t rows = 0, k = 0, kp = 0, m = 0, group = 0, groups = 0;
  bool quantized() const { return groups > 0; }
  float *f = nullptr;      // [tiles][k][m], for float weights
  int8_t *q = nullptr;     // [tiles][kp / 4][m][4]
  float *scale = nullptr;  // [tiles][groups][m]
  float *sum = nullptr;    // [tiles][groups][m] scale * sum of q over the group
  int32_t *isum = nullptr; // [tiles][groups][m] sum of q over the group
};

// Query rows that share keys: `rows` (token, head) pairs of one sequence and one kv head.
struct AttendJob {
  const float *q[8];      // [D] each, rotated
  float *out[8];          // [D] each
  int64_t length[8];      // keys seen by the row: positions 0 .. length-1
  int64_t rows = 0, dim = 0, block = 0;  // head size, positions of a cache block
  const uint8_t *cache = nullptr;   // block 0 of this layer and kv head: keys [D16][block]
  const int32_t *table = nullptr;   // block of positions i * block ..
  int64_t block_bytes = 0;          // from one block to the next
  int64_t value_bytes = 0;          // from a block's keys to its values [block][D16]
  bool half = false;
  const uint8_t *Keys(int64_t position) const { return cache + table[position / block] * block_bytes; }
  const uint8_t *Values(int64_t position) const { return Keys(position) + value_bytes; }
  float scale = 1;
  float *scores = nullptr;  // [rows][stride]
  int64_t stride = 0;
};

// Kernels of training and of checkpoints, one table a family: see gemm.h, flash.h, train.h, block.h.
struct BlockKernels;
struct GemmKernels;
struct FlashKernels;
struct TrainKernels;

struct Kernels {
  const char *name;
  void (*rms_norm)(const float *x, const float *w, float eps, int64_t h, float *y);
  void (*pack_float)(const float *x, int64_t row, const Acts &acts);
  void (*pack_int8)(const float *x, int64_t row, const Acts &acts);
  // out[r * stride + lane] for rows [0, acts.rows): the 16 outputs of one panel, or the 32 of two neighbours, which
  // share the reading of the activations; `scratch` holds k * 16 floats a panel for float activations.
  void (*panels)(const Weight &w, const uint8_t *panel, int count, const Acts &acts, float *out, int64_t stride, float *scratch);
  void (*unpack_row)(const Weight &w, const uint8_t *panel, int lane, float *out);  // [k] f32
  void (*swiglu)(const float *gate, const float *up, float *y, int64_t n);
  void (*add)(const float *a, const float *b, float *y, int64_t n);
  void (*rope)(const float *x, const float *table, int64_t dim, float *y);
  void (*store_kv)(const float *k, const float *v, int64_t dim, int64_t block, int64_t slot, bool half, uint8_t *key_block,
                   uint8_t *value_block);
  void (*attend)(const AttendJob &job);
  const GemmKernels *gemm;
  const FlashKernels *flash;
  const TrainKernels *train;
  const BlockKernels *block;
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif
const Kernels &Active();
}  // namespace msms
