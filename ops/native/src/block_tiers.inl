// Residuals in tiers: their lowest bits as in any block, and how many times 2^width is above them, k, as planes of bits,
// each about those alone that the plane before has at 1. Part of kernels_block.inl.
constexpr int kWords = kValues / 64, kSteps = 4, kEscape = kSteps + 15, kTierWidths = 4;
constexpr int kPlaneBytes = kValues / 8 * (kSteps + 4);  // of all planes at most

// Appends bits, lowest first; writes up to 8 bytes beyond them.
struct BitWriter {
  uint8_t *out;
  int64_t at = 0;
  uint64_t pending = 0;  // what the byte at `at` holds so far
  void Put(uint64_t bits, int count) {
    const int shift = static_cast<int>(at & 7), end = shift + count;
    const uint64_t low = pending | bits << shift, high = bits >> 1 >> (63 - shift);
    uint8_t *to = out + (at >> 3);
    std::memcpy(to, &low, 8);
    to[8] = static_cast<uint8_t>(high);
    pending = end >= 64 ? high : low >> (end & 56);
    at += count;
  }
  // What of each word is at the ones of its mask; few words at once where they fit into one.
  void PutMasked(const uint64_t *words, const uint64_t *masks, int size) {
    uint64_t held = 0;
    int count = 0;
    for (int j = 0; j < size; ++j) {
      const int more = __builtin_popcountll(masks[j]);
      if (count + more >= 64) {
        Put(held, count);
        held = 0;
        count = 0;
      }
      held |= Extract(words[j], masks[j]) << count;
      count += more;
    }
    Put(held, count);
  }
};

// Reads up to 8 bytes beyond what was asked for, and does not clear what is above it.
struct BitReader {
  const uint8_t *in;
  int64_t at = 0;
  uint64_t Take(int count) {
    uint64_t low;
    const uint8_t *from = in + (at >> 3);
    std::memcpy(&low, from, 8);
    const int shift = static_cast<int>(at & 7);
    at += count;
    return low >> shift | static_cast<uint64_t>(from[8]) << 1 << (63 - shift);
  }
};

// Takes tiers where they need fewer bytes than the plan: of the four widths below its own the best, of equal ones the
// widest. Then k holds, of each residual, what is above the narrowest of these widths, at most 255.
inline void FindTiers(const uint32_t *u, uint8_t *k, Plan &plan) {
  const int lowest = plan.width > kTierWidths ? plan.width - kTierWidths : 0;
  int64_t best = plan.bytes();
  if (best <= msms::kBlockHeader + 64 * lowest + kValues / 8) return;
  Narrow(u, kValues, lowest, k);
  static constexpr uint8_t kLimits[] = {1, 2, 4, 8, 16, 32, 3, 6, 12, 24, kEscape, 2 * kEscape, 4 * kEscape, 8 * kEscape};
  int counts[sizeof(kLimits)];
  CountBytes<kValues>(k, kLimits, counts);
  for (int i = kTierWidths - 1; i >= 0; --i) {
    const int bits = counts[i] + counts[i + 1] + counts[6 + i] + 4 * counts[i + 2], exceptions = counts[10 + i];
    const int planes = kValues / 8 + (bits + 7) / 8, width = lowest + i;
    if (const int64_t bytes = msms::kBlockHeader + 64 * width + planes + 4 * exceptions; bytes < best) {
      best = bytes;
      plan.tiers = true;
      plan.width = width;
      plan.exceptions = exceptions;
      plan.planes = planes;
      plan.above = i;
    }
  }
}

inline void PutTiers(const uint32_t *u, const uint8_t *k, const Plan &plan, uint8_t *out) {
  uint8_t planes[kPlaneBytes + 16];
  uint64_t inside[kWords], nibbles[4][kWords];
  for (int j = 0; j < kWords; ++j) inside[j] = AtLeast(k + 64 * j, static_cast<uint8_t>(1 << plan.above));
  std::memcpy(planes, inside, sizeof(inside));
  BitWriter bits{planes, kValues};
  for (int step = 2; step <= kSteps; ++step) {
    uint64_t next[kWords];
    for (int j = 0; j < kWords; ++j) next[j] = AtLeast(k + 64 * j, static_cast<uint8_t>(step << plan.above));
    bits.PutMasked(next, inside, kWords);
    std::memcpy(inside, next, sizeof(inside));
  }
  for (int j = 0; j < kWords; ++j) BitsAbove(k + 64 * j, plan.above, kSteps, kEscape, j, nibbles);
  for (const auto &nibble : nibbles) bits.PutMasked(nibble, inside, kWords);
  std::memcpy(out, planes, static_cast<size_t>(plan.planes));
  if (plan.exceptions) {
    uint32_t values[kValues + kLanes];
    Collect(u, kValues, (uint32_t{kEscape} << plan.width) - 1, nullptr, values);
    std::memcpy(out + plan.planes, values, 4 * static_cast<size_t>(plan.exceptions));
  }
}

// Adds to the lowest bits in u what is above them; sets plan.planes, or returns a BlockError.
inline int AddTiers(const uint8_t *in, int64_t left, int64_t count, Plan &plan, uint32_t *u) {
  uint8_t padded[kPlaneBytes + 16];
  BitReader bits{in};
  if (left < kPlaneBytes + 16) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, in, static_cast<size_t>(left < kPlaneBytes ? left : kPlaneBytes));
    bits.in = padded;
  }
  uint64_t planes[kSteps + 4][kWords], beyond[kWords];
  std::memcpy(planes[0], bits.in, sizeof(planes[0]));
  bits.at = kValues;
  for (int p = 1; p < kSteps + 4; ++p) {
    for (int j = 0; j < kWords; ++j) {
      const uint64_t inside = planes[(p < kSteps ? p : kSteps) - 1][j];
      planes[p][j] = Deposit(bits.Take(__builtin_popcountll(inside)), inside);
    }
  }
  int exceptions = 0;
  for (int j = 0; j < kWords; ++j) {
    beyond[j] = planes[kSteps][j] & planes[kSteps + 1][j] & planes[kSteps + 2][j] & planes[kSteps + 3][j];
    exceptions += __builtin_popcountll(beyond[j]);
  }
  plan.planes = static_cast<int>((bits.at + 7) / 8);
  if (plan.planes + 4 * plan.exceptions > left) return msms::kTooShort;
  if (exceptions != plan.exceptions || (bits.at % 8 && bits.in[bits.at / 8] >> bits.at % 8)) return msms::kBadTiers;
  for (int64_t i = count; i < kValues; ++i) {
    if (planes[0][i / 64] >> i % 64 & 1) return msms::kBadTiers;
  }
  static constexpr uint8_t kWeights[kSteps + 4] = {1, 1, 1, 1, 1, 2, 4, 8};
  AddPlanes(planes, kWeights, plan.width, u);
  if (exceptions) Fill(u, beyond, kWords, in + plan.planes);
  return msms::kWhole;
}
