// The entry points of checkpoints, called by ctypes. Those of one chunk use their caller's thread alone: they run
// beside training, which has the pool.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "aside.h"
#include "block.h"
#include "kernels.h"
#include "pool.h"

namespace {
const msms::BlockKernels &Blocks() { return *msms::Active().block; }
}  // namespace

extern "C" {
// Bytes written of n values of 32 bits, or -1 when they exceed `capacity`; base may be null.
int64_t MsmsBlockEncode(const uint8_t *x, const uint8_t *base, int64_t n, uint8_t *out, int64_t capacity) {
  return Blocks().encode(x, base, n, out, capacity);
}

// The bytes that all n values may take, from `blocks` of their blocks, spread evenly.
int64_t MsmsBlockEstimate(const uint8_t *x, const uint8_t *base, int64_t n, int64_t blocks) {
  const int64_t all = (n + msms::kBlockValues - 1) / msms::kBlockValues, seen = std::min(blocks, all);
  if (seen <= 0) return 0;
  int64_t bytes = 0;
  for (int64_t i = 0; i < seen; ++i) {
    const int64_t first = (2 * i + 1) * all / (2 * seen) * msms::kBlockValues;
    bytes += Blocks().size(x + 4 * first, base ? base + 4 * first : nullptr, std::min(msms::kBlockValues, n - first));
  }
  return bytes * all / seen;
}

// A BlockError: 0 when `used` bytes were exactly those of n values.
int MsmsBlockDecode(const uint8_t *in, int64_t used, const uint8_t *base, int64_t n, uint8_t *out) {
  return Blocks().decode(in, used, base, n, out);
}

// 1 when none of n items (2, 4 or 8 bytes) has all bits of `exponent` set, else 0.
int MsmsFinite(const uint8_t *x, int64_t n, int itemsize, uint64_t exponent) { return Blocks().finite(x, n, itemsize, exponent); }

// Copies buffers that do not overlap on all threads; 0, or 1 when there is no memory for the list of pieces.
int MsmsCopyAside(int64_t count, uint8_t *const *to, const uint8_t *const *from, const int64_t *bytes) try {
  std::vector<msms::Copy> copies;
  for (int64_t i = 0; i < count; ++i) copies.push_back({to[i], from[i], bytes[i]});
  msms::Pool &pool = msms::Pool::Get();
  const auto turn = pool.Lock("MsmsCopyAside");
  msms::CopyAll(pool, copies);
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}
}
