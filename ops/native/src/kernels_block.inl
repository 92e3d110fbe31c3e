// Checkpoint chunks as blocks of 512 values, each with the width that costs least, and exceptions. Part of kernels.inl.
namespace block {
#include "block_simd.inl"

constexpr int kValues = static_cast<int>(msms::kBlockValues), kVectors = kValues / kLanes;

struct Plan {
  uint32_t reference = 0;
  int width = 0, exceptions = 0;
  msms::BlockMode mode = msms::kPlainBits;
  bool tiers = false;
  int planes = 0, above = 0;  // of tiers: bytes of their planes; how far the width is above the narrowest that was tried
  int64_t bytes() const { return msms::kBlockHeader + 64 * width + planes + (tiers ? 4 : 6) * exceptions; }
};
#include "block_tiers.inl"

// Value v of lane l is bits v * W .. of the words of lane l; word k of all lanes is 64 bytes from 64 * k on.
template <int W>
void Pack(const uint32_t *u, uint8_t *out) {
  if constexpr (W > 0) {
    const VU mask = All(W == 32 ? ~0u : (1u << (W & 31)) - 1);
    for (int lane = 0; lane < kLanes; lane += kWidth) {
      VU word = {};
#pragma GCC unroll 32
      for (int v = 0; v < kVectors; ++v) {
        const int shift = v * W % 32, k = v * W / 32;
        const VU value = Get(u + v * kLanes + lane) & mask;
        word = shift ? word | value << shift : value;
        if (shift + W >= 32) {
          Put(out + 64 * k + 4 * lane, word);
          if (shift + W > 32) word = value >> (32 - shift);
        }
      }
    }
  }
}
template <int W>
void Unpack(const uint8_t *in, uint32_t *u) {
  const VU mask = All(W == 32 ? ~0u : (1u << (W & 31)) - 1);
  for (int lane = 0; lane < kLanes; lane += kWidth) {
    VU word = {};
#pragma GCC unroll 32
    for (int v = 0; v < kVectors; ++v) {
      const int shift = v * W % 32, k = v * W / 32;
      if (W > 0 && shift == 0) word = Get(in + 64 * k + 4 * lane);
      VU value = word >> shift;
      if (shift + W > 32) {
        word = Get(in + 64 * (k + 1) + 4 * lane);
        value |= word << (32 - shift);
      }
      Put(u + v * kLanes + lane, value & mask);
    }
  }
}
template <int... W>
void PackAs(int width, const uint32_t *u, uint8_t *out, std::integer_sequence<int, W...>) {
  static constexpr void (*kTable[])(const uint32_t *, uint8_t *) = {Pack<W>...};
  kTable[width](u, out);
}
template <int... W>
void UnpackAs(int width, const uint8_t *in, uint32_t *u, std::integer_sequence<int, W...>) {
  static constexpr void (*kTable[])(const uint8_t *, uint32_t *) = {Unpack<W>...};
  kTable[width](in, u);
}
using Widths = std::make_integer_sequence<int, 33>;

// Floats in the order of their values; its own inverse.
inline VU Ordered(VU x) { return x ^ (VU)(((VI)x >> 31) & 0x7fffffff); }
inline uint32_t Ordered(uint32_t x) { return x >> 31 ? x ^ 0x7fffffffu : x; }

// What most values of a block moved by: the median of nine of them, by a network of exchanges that never mispredicts.
inline uint32_t Median(const uint8_t *x, const uint8_t *base, int64_t n) {
  int32_t moved[9];
  for (int s = 0; s < 9; ++s) {
    const int64_t at = 4 * (s * (n - 1) / 8);
    uint32_t a, b;
    std::memcpy(&a, x + at, 4);
    std::memcpy(&b, base + at, 4);
    moved[s] = static_cast<int32_t>(Ordered(a) - Ordered(b));
  }
  static constexpr uint8_t kExchanges[19][2] = {{1, 2}, {4, 5}, {7, 8}, {0, 1}, {3, 4}, {6, 7}, {1, 2}, {4, 5}, {7, 8}, {0, 3},
                                                {5, 8}, {4, 7}, {3, 6}, {1, 4}, {2, 5}, {4, 7}, {4, 2}, {6, 4}, {4, 2}};
#pragma GCC unroll 19
  for (int i = 0; i < 19; ++i) {
    int32_t &low = moved[kExchanges[i][0]], &high = moved[kExchanges[i][1]];
    const int32_t a = low, b = high;
    low = a < b ? a : b;
    high = a < b ? b : a;
  }
  return static_cast<uint32_t>(moved[4]);
}

// The largest value is the reference: residuals are how far the others lie below it.
inline VU SelfResiduals(const uint8_t *x, uint32_t *u, Plan &plan) {
  VU top = {}, rotated_top = {};
  for (int i = 0; i < kValues; i += kWidth) {
    const VU v = Get(x + 4 * i);
    top = Larger(top, v);
    rotated_top = Larger(rotated_top, v << 1 | v >> 31);
  }
  plan.reference = MaxOf(top);
  VU all = {};
  if (plan.reference >> 31) {
    plan.mode = msms::kSignLowest;
    plan.reference = MaxOf(rotated_top);
    for (int i = 0; i < kValues; i += kWidth) {
      const VU v = Get(x + 4 * i), r = All(plan.reference) - (v << 1 | v >> 31);
      Put(u + i, r);
      all |= r;
    }
  } else {
    for (int i = 0; i < kValues; i += kWidth) {
      const VU r = All(plan.reference) - Get(x + 4 * i);
      Put(u + i, r);
      all |= r;
    }
  }
  return all;
}

inline VU DeltaResiduals(const uint8_t *x, const uint8_t *base, int64_t n, uint32_t *u, Plan &plan) {
  plan.mode = msms::kOrderedDelta;
  plan.reference = Median(x, base, n);
  VU all = {};
  for (int i = 0; i < kValues; i += kWidth) {
    const VU d = Ordered(Get(x + 4 * i)) - Ordered(Get(base + 4 * i)) - All(plan.reference);
    const VU r = d << 1 ^ (VU)((VI)d >> 31);
    Put(u + i, r);
    all |= r;
  }
  return all;
}

// How many residuals need more than `width`, `width - 1` .. bits; below 0 bits it says what 0 bits has.
inline void CountOver(const uint32_t *u, int width, int counts[4]) {
  VU limits[4], sums[4] = {};
  for (int j = 0; j < 4; ++j) limits[j] = All(width - j > 0 ? (1u << (width - j)) - 1 : 0);
  for (int i = 0; i < kValues; i += kWidth) {
    const VU v = Get(u + i);
    for (int j = 0; j < 4; ++j) sums[j] -= (VU)(v > limits[j]);
  }
  // No lane exceeds 128 and no sum 512: two are summed up at once.
  for (int j = 0; j < 4; j += 2) {
    const uint32_t both = SumOf(sums[j] | sums[j + 1] << 16);
    counts[j] = static_cast<int>(both & 0xffff);
    counts[j + 1] = static_cast<int>(both >> 16);
  }
}

// Fills u with the residuals and finds the width of least cost, of equal ones the widest; k is for tiers.
inline Plan MakePlan(const uint8_t *x, const uint8_t *base, int64_t n, uint32_t *u, uint8_t *k) {
  Plan plan;
  alignas(64) uint8_t whole[2][4 * kValues];
  if (n < kValues) {  // the last value repeated: it changes neither maximum nor sign
    for (int side = 0; side < (base ? 2 : 1); ++side) {
      const uint8_t *from = side ? base : x;
      std::memcpy(whole[side], from, static_cast<size_t>(4 * n));
      for (int64_t i = n; i < kValues; ++i) std::memcpy(whole[side] + 4 * i, from + 4 * (n - 1), 4);
    }
    x = whole[0];
    if (base) base = whole[1];
  }
  VU all = base ? DeltaResiduals(x, base, n, u, plan) : SelfResiduals(x, u, plan);
  for (int64_t i = n; i < kValues; ++i) u[i] = 0;  // what no one reads costs no exception
  const uint32_t used = OrOf(all);
  plan.width = used ? 32 - __builtin_clz(used) : 0;
  int best = 512 * plan.width, counts[4];
  for (int width = plan.width - 1, j = 4; width >= 0; --width, ++j) {
    if (j == 4) CountOver(u, width, counts), j = 0;
    if (48 * counts[j] >= best) break;  // narrower ones have as many or more
    if (const int cost = 512 * width + 48 * counts[j]; cost < best) {
      best = cost;
      plan.width = width;
      plan.exceptions = counts[j];
    }
  }
  FindTiers(u, k, plan);
  return plan;
}

int64_t Size(const uint8_t *x, const uint8_t *base, int64_t n) {
  alignas(64) uint32_t u[kValues];
  alignas(64) uint8_t k[kValues];
  return MakePlan(x, base, n, u, k).bytes();
}

inline void PutExceptions(const uint32_t *u, const Plan &plan, uint8_t *out) {
  uint16_t positions[kValues + kLanes];
  uint32_t values[kValues + kLanes];
  Collect(u, kValues, (1u << plan.width) - 1, positions, values);  // with 32 bits there are none
  const size_t count = static_cast<size_t>(plan.exceptions);
  std::memcpy(out, positions, 2 * count);
  std::memcpy(out + 2 * count, values, 4 * count);
}

int64_t Encode(const uint8_t *x, const uint8_t *base, int64_t n, uint8_t *out, int64_t capacity) {
  alignas(64) uint32_t u[kValues];
  alignas(64) uint8_t k[kValues];
  int64_t used = 0;
  for (int64_t first = 0; first < n; first += kValues) {
    const int64_t count = n - first < kValues ? n - first : kValues;
    const Plan plan = MakePlan(x + 4 * first, base ? base + 4 * first : nullptr, count, u, k);
    if (plan.bytes() > capacity - used) return -1;
    uint8_t *to = out + used;
    const uint16_t exceptions = static_cast<uint16_t>(plan.exceptions);
    to[0] = static_cast<uint8_t>(plan.width);
    to[1] = static_cast<uint8_t>(plan.mode | (plan.tiers ? msms::kTiers : 0));
    std::memcpy(to + 2, &exceptions, 2);
    std::memcpy(to + 4, &plan.reference, 4);
    PackAs(plan.width, u, to + msms::kBlockHeader, Widths{});
    if (plan.tiers) {
      PutTiers(u, k, plan, to + msms::kBlockHeader + 64 * plan.width);
    } else if (plan.exceptions) {
      PutExceptions(u, plan, to + msms::kBlockHeader + 64 * plan.width);
    }
    used += plan.bytes();
  }
  return used;
}

inline void Restore(const uint32_t *u, const Plan &plan, const uint8_t *base, uint8_t *out) {
  const VU reference = All(plan.reference);
  if (plan.mode == msms::kOrderedDelta) {
    for (int i = 0; i < kValues; i += kWidth) {
      const VU r = Get(u + i), d = r >> 1 ^ -(r & 1);
      Put(out + 4 * i, Ordered(Ordered(Get(base + 4 * i)) + reference + d));
    }
  } else if (plan.mode == msms::kSignLowest) {
    for (int i = 0; i < kValues; i += kWidth) {
      const VU y = reference - Get(u + i);
      Put(out + 4 * i, y >> 1 | y << 31);
    }
  } else {
    for (int i = 0; i < kValues; i += kWidth) Put(out + 4 * i, reference - Get(u + i));
  }
}

inline int SetExceptions(const uint8_t *positions, int64_t count, const Plan &plan, uint32_t *u) {
  const uint8_t *residuals = positions + 2 * plan.exceptions;
  int64_t before = -1;
  for (int i = 0; i < plan.exceptions; ++i) {
    uint16_t at;
    std::memcpy(&at, positions + 2 * i, 2);
    if (at <= before || at >= count) return msms::kBadPosition;
    std::memcpy(&u[at], residuals + 4 * i, 4);
    before = at;
  }
  return msms::kWhole;
}

int Decode(const uint8_t *in, int64_t used, const uint8_t *base, int64_t n, uint8_t *out) {
  alignas(64) uint32_t u[kValues];
  alignas(64) uint8_t whole[2][4 * kValues] = {};
  for (int64_t first = 0; first < n; first += kValues) {
    const int64_t count = n - first < kValues ? n - first : kValues;
    if (used < msms::kBlockHeader) return msms::kTooShort;
    Plan plan;
    uint16_t exceptions;
    std::memcpy(&exceptions, in + 2, 2);
    std::memcpy(&plan.reference, in + 4, 4);
    plan.width = in[0];
    plan.exceptions = exceptions;
    plan.tiers = in[1] & msms::kTiers;
    plan.mode = static_cast<msms::BlockMode>(in[1] & ~msms::kTiers);
    if (plan.width > (plan.tiers ? 31 : 32) || exceptions > count) return msms::kBadHeader;
    if (base ? plan.mode != msms::kOrderedDelta : plan.mode > msms::kSignLowest) return msms::kBadHeader;
    if (plan.bytes() > used) return msms::kTooShort;
    UnpackAs(plan.width, in + msms::kBlockHeader, u, Widths{});
    const uint8_t *behind = in + msms::kBlockHeader + 64 * plan.width;
    const int error = plan.tiers ? AddTiers(behind, in + used - behind, count, plan, u) : SetExceptions(behind, count, plan, u);
    if (error) return error;
    in += plan.bytes();
    used -= plan.bytes();
    const uint8_t *from = base ? base + 4 * first : nullptr;
    if (count == kValues) {
      Restore(u, plan, from, out + 4 * first);
    } else {
      if (base) std::memcpy(whole[0], from, static_cast<size_t>(4 * count));
      Restore(u, plan, whole[0], whole[1]);
      std::memcpy(out + 4 * first, whole[1], static_cast<size_t>(4 * count));
    }
  }
  return used ? msms::kTooLong : msms::kWhole;
}

template <class T>
bool FiniteAs(const uint8_t *x, int64_t n, T exponent) {
  constexpr int64_t kPiece = 4096;  // a plain loop inside is turned into vectors, and one that ends early is not
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = n - first < kPiece ? n - first : kPiece;
    T bad = 0;
    for (int64_t i = 0; i < count; ++i) {
      T item;
      std::memcpy(&item, x + static_cast<int64_t>(sizeof(T)) * (first + i), sizeof(T));
      bad |= static_cast<T>((item & exponent) == exponent);
    }
    if (bad) return false;
  }
  return true;
}
bool Finite(const uint8_t *x, int64_t n, int itemsize, uint64_t exponent) {
  if (itemsize == 2) return FiniteAs<uint16_t>(x, n, static_cast<uint16_t>(exponent));
  return itemsize == 4 ? FiniteAs<uint32_t>(x, n, static_cast<uint32_t>(exponent)) : FiniteAs<uint64_t>(x, n, exponent);
}

const msms::BlockKernels kBlock = {Encode, Size, Decode, Finite};
}  // namespace block
using block::kBlock;
