// Chunks of a checkpoint in fewer bits: blocks of 512 values of 32 bits, and whether values are finite.
// The bytes are the same on every instruction set; docs/checkpoint-format.md gives them one by one.
#pragma once
#include <cstdint>

namespace msms {
constexpr int64_t kBlockValues = 512, kBlockHeader = 8;
// How a residual was made of a value: of its bits, of its bits with the sign moved to the lowest, of its distance to a base.
enum BlockMode : uint8_t { kPlainBits = 0, kSignLowest = 1, kOrderedDelta = 2 };
constexpr uint8_t kTiers = 4;  // beside the mode: what is above the width's bits follows in planes
enum BlockError : int { kWhole = 0, kTooShort = 1, kBadHeader = 2, kBadPosition = 3, kTooLong = 4, kBadTiers = 5 };

// x, base and out are read and written as bytes: they need no alignment.
struct BlockKernels {
  // Bytes written for n values, or -1 when `capacity` does not hold them; base may be null.
  int64_t (*encode)(const uint8_t *x, const uint8_t *base, int64_t n, uint8_t *out, int64_t capacity);
  int64_t (*size)(const uint8_t *x, const uint8_t *base, int64_t n);  // of one block, n <= kBlockValues
  int (*decode)(const uint8_t *in, int64_t used, const uint8_t *base, int64_t n, uint8_t *out);  // a BlockError
  // Whether no item has all bits of `exponent` set; itemsize 2, 4 or 8.
  bool (*finite)(const uint8_t *x, int64_t n, int itemsize, uint64_t exponent);
};
}  // namespace msms
