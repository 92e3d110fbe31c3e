// The checkpoint's kernels under the address and undefined-behaviour sanitizers: round trips through buffers of the
// exact size at odd addresses, one sequence of bytes on all instruction sets, and streams that were damaged or drawn.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

extern "C" {
int64_t MsmsBlockEncode(const uint8_t *, const uint8_t *, int64_t, uint8_t *, int64_t);
int64_t MsmsBlockEstimate(const uint8_t *, const uint8_t *, int64_t, int64_t);
int MsmsBlockDecode(const uint8_t *, int64_t, const uint8_t *, int64_t, uint8_t *);
int MsmsFinite(const uint8_t *, int64_t, int, uint64_t);
int MsmsCopyAside(int64_t, uint8_t *const *, const uint8_t *const *, const int64_t *);
int MsmsSetIsa(const char *);
void MsmsSetThreads(int);
}

namespace {
std::mt19937 rng(5);
int failures = 0, checks = 0;
using Bytes = std::vector<uint8_t>;

void Check(bool good, const char *what, int64_t n) {
  ++checks;
  if (!good) ++failures, std::printf("FAILED %s of %lld values\n", what, static_cast<long long>(n));
}

// A copy whose memory begins at an odd address and ends where the data does.
struct Odd {
  explicit Odd(int64_t n) : all(new uint8_t[static_cast<size_t>(n) + 1]), data(all.get() + 1) {}
  explicit Odd(const Bytes &from) : Odd(static_cast<int64_t>(from.size())) {
    if (!from.empty()) std::memcpy(data, from.data(), from.size());
  }
  std::unique_ptr<uint8_t[]> all;
  uint8_t *data;
};

// Floats around zero, small integers, any bits, one value, or integers of a few sizes; now and then a value from far outside.
Bytes Draw(int64_t n, int kind) {
  Bytes bytes(static_cast<size_t>(4 * n));
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) {
    const float f = normal(rng);
    uint32_t bits = rng();
    if (kind == 0) std::memcpy(&bits, &f, 4);
    if (kind == 1) bits &= 1023;
    if (kind == 3) bits = 7;
    if (kind == 4) bits = rng() >> (8 + std::min(20, static_cast<int>(rng() % 64 ? rng() % 6 : rng() % 24)));
    if (rng() % 97 == 0) bits = rng();
    std::memcpy(bytes.data() + 4 * i, &bits, 4);
  }
  return bytes;
}
Bytes Moved(Bytes bytes, int kind) {
  for (size_t i = 0; kind && i + 4 <= bytes.size(); i += 4) {
    uint32_t bits;
    std::memcpy(&bits, bytes.data() + i, 4);
    if (kind == 1 || rng() % 50 == 0) bits += rng() % 4096;
    std::memcpy(bytes.data() + i, &bits, 4);
  }
  return bytes;
}

Bytes RoundTrip(const Bytes &x, const Bytes *base) {
  const int64_t n = static_cast<int64_t>(x.size() / 4);
  const Odd from(x), near(base ? *base : Bytes());
  const uint8_t *b = base ? near.data : nullptr;
  Bytes room(x.size() + 8 * (x.size() / 2048 + 1) + 2048);
  const int64_t used = MsmsBlockEncode(from.data, b, n, room.data(), static_cast<int64_t>(room.size()));
  Check(used >= 0, "encode", n);
  const Odd exact(used);
  Check(MsmsBlockEncode(from.data, b, n, exact.data, used) == used, "encode to the last byte", n);
  if (used) Check(MsmsBlockEncode(from.data, b, n, exact.data, used - 1) == -1, "encode without room", n);
  Check(MsmsBlockEncode(from.data, b, n, exact.data, used) == used, "encode again", n);
  const Odd back(static_cast<int64_t>(x.size()));
  Check(MsmsBlockDecode(exact.data, used, b, n, back.data) == 0, "decode", n);
  Check(x.empty() || !std::memcmp(back.data, x.data(), x.size()), "bits", n);
  Check(MsmsBlockEstimate(from.data, b, n, 1 << 30) == used, "estimate from all blocks", n);
  MsmsBlockEstimate(from.data, b, n, 8);
  Bytes stored(exact.data, exact.data + used);
  for (int i = 0; i < 60; ++i) {  // refused or decoded to something, within its buffers
    Bytes bad = stored;
    for (unsigned j = rng() % 4; !bad.empty() && j-- > 0;) bad[rng() % (rng() % 2 ? bad.size() : std::min<size_t>(8, bad.size()))] ^= 1u << rng() % 8;
    if (rng() % 3 == 0) bad.resize(rng() % (bad.size() + 9));
    const Odd damaged(bad);
    MsmsBlockDecode(damaged.data, static_cast<int64_t>(bad.size()), b, n, back.data);
  }
  return stored;
}

void Noise(int64_t n, bool delta) {
  Bytes bad(rng() % 5000);
  for (uint8_t &byte : bad) byte = static_cast<uint8_t>(rng());
  if (rng() % 2) {  // few ones: planes that get short
    for (uint8_t &byte : bad) byte &= rng() & rng() & rng();
  }
  if (bad.size() > 4) bad[0] %= 33, bad[1] = (delta ? 2 : bad[1] % 2) | (rng() % 2 ? 4 : 0), bad[3] = 0;
  const Odd damaged(bad), base(4 * n), back(4 * n);
  std::memset(base.data, 0, static_cast<size_t>(4 * n));
  MsmsBlockDecode(damaged.data, static_cast<int64_t>(bad.size()), delta ? base.data : nullptr, n, back.data);
}

void Finite() {
  for (const int64_t n : {1, 31, 4097, 9000}) {
    Odd x(8 * n);
    std::memset(x.data, 0x3f, static_cast<size_t>(8 * n));
    Check(MsmsFinite(x.data, n, 8, 0x7ff0000000000000u) == 1, "finite", n);
    x.data[8 * n - 2] = 0xf0, x.data[8 * n - 1] = 0xff;
    Check(MsmsFinite(x.data, n, 8, 0x7ff0000000000000u) == 0, "not finite", n);
    Check(MsmsFinite(x.data, 4 * n, 2, 0x7c00) == 0 && MsmsFinite(x.data, 4 * n - 1, 2, 0x7c00) == 1, "finite halves", n);
    Check(MsmsFinite(x.data, 2 * n - 1, 4, 0x7f800000) == 1, "finite floats", n);
  }
}

void Copies() {
  const std::vector<int64_t> sizes = {0, 1, 63, 4095, 4097, 70001, (1 << 20) + 5, 3 << 20};
  for (const int threads : {1, 3}) {
    MsmsSetThreads(threads);
    std::vector<Odd> from, to;
    std::vector<const uint8_t *> sources;
    std::vector<uint8_t *> targets;
    for (const int64_t size : sizes) {
      from.emplace_back(size), to.emplace_back(size);
      for (int64_t i = 0; i < size; ++i) from.back().data[i] = static_cast<uint8_t>(rng());
      sources.push_back(from.back().data), targets.push_back(to.back().data);
    }
    Check(MsmsCopyAside(static_cast<int64_t>(sizes.size()), targets.data(), sources.data(), sizes.data()) == 0, "copy", threads);
    for (size_t i = 0; i < sizes.size(); ++i) Check(!std::memcmp(targets[i], sources[i], static_cast<size_t>(sizes[i])), "copied bytes", sizes[i]);
  }
}
}  // namespace

int main() {
  for (const int64_t n : {0, 1, 15, 511, 512, 513, 1500, 5000}) {
    for (int kind = 0; kind < 5; ++kind) {
      const Bytes x = Draw(n, kind);
      for (int near = -1; near < 3; ++near) {
        const Bytes base = near < 0 ? Bytes() : Moved(x, near);
        Bytes first;
        bool begun = false;
        for (const char *isa : {"portable", "avx2", "avx512"}) {
          if (MsmsSetIsa(isa) != 0) continue;
          const Bytes stored = RoundTrip(x, near < 0 ? nullptr : &base);
          if (begun) Check(stored == first, "the same bytes", n);
          first = stored;
          begun = true;
        }
      }
    }
  }
  for (const char *isa : {"portable", "avx2", "avx512"}) {
    if (MsmsSetIsa(isa) != 0) continue;
    for (int i = 0; i < 3000; ++i) Noise(1 + rng() % 1100, i % 2);
    Finite();
    Copies();
    std::printf("%s: checkpoint kernels\n", isa);
  }
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures ? 1 : 0;
}
