// How a weight matrix lies in the arena: panels of 16 output rows, so that outputs are lanes and the inner dimension
// is walked in one order whatever the number of tokens.
#pragma once
#include <cstdint>
#include <vector>

namespace msms {
enum Kind : int64_t { kF32 = 0, kW8 = 1, kW4 = 2 };
constexpr int64_t kMaxDim = int64_t{1} << 24;

struct Weight {
  int64_t offset = 0, n = 0, k = 0, kind = 0, group = 0, asym = 0, act = 0;
  int64_t kp = 0, groups = 0, panels = 0, scale_at = 0, min_at = 0, panel_bytes = 0;

  // Fills the derived sizes; false when the seven numbers make no sense. `d`: offset, N, K, kind, group, asym, act.
  bool Parse(const std::vector<int64_t> &d) {
    if (d.size() != 7) return false;
    offset = d[0], n = d[1], k = d[2], kind = d[3], group = d[4], asym = d[5], act = d[6];
    if (offset < 0 || offset % 64 || n < 1 || k < 1 || n > kMaxDim || k > kMaxDim) return false;
    if (kind < kF32 || kind > kW4 || (asym | act) < 0 || asym > 1 || act > 1) return false;
    if (group != 0 && group != 32 && group != 64 && group != 128) return false;
    if (kind == kF32 && (group || asym || act)) return false;
    if (kind == kW8 && asym) return false;
    if (kind == kW4 && group == 0) return false;
    if (kind == kW8 && group == 0 && k > 65536) return false;  // int32 accumulators: 255 * 127 * 65536 < 2^31
    kp = kind == kF32 ? k : (k + 31) / 32 * 32;
    groups = kind == kF32 ? 0 : group ? (kp + group - 1) / group : 1;
    panels = (n + 15) / 16;
    scale_at = kind == kF32 ? k * 64 : kind == kW8 ? kp * 16 : kp * 8;
    min_at = scale_at + groups * (group ? 32 : 64);
    panel_bytes = (min_at + (asym ? groups * 32 : 0) + 63) / 64 * 64;
    return true;
  }
  int64_t bytes() const { return panels * panel_bytes; }
  bool Fits(int64_t arena_bytes) const { return offset <= arena_bytes && bytes() <= arena_bytes - offset; }
  const uint8_t *Panel(const uint8_t *arena, int64_t p) const { return arena + offset + p * panel_bytes; }
};
}  // namespace msms
