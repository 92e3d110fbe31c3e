// The vectors of the checkpoint's kernels: one register wide, so that sixteen lanes are one, two or four of them.
// Part of kernels_block.inl.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef uint32_t VU __attribute__((vector_size(4 * kWidth)));
typedef int32_t VI __attribute__((vector_size(4 * kWidth)));

inline VU Get(const void *p) {
  VU v;
  std::memcpy(&v, p, sizeof(VU));
  return v;
}
inline void Put(void *p, VU v) { std::memcpy(p, &v, sizeof(VU)); }
inline VU All(uint32_t x) { return VU{} + x; }
inline VU Larger(VU a, VU b) { return a > b ? a : b; }
inline uint32_t Reduce(VU v, uint32_t (*fold)(uint32_t, uint32_t)) {
  uint32_t result = v[0];
  for (int i = 1; i < kWidth; ++i) result = fold(result, v[i]);
  return result;
}
#if defined(__AVX512F__)
inline uint32_t MaxOf(VU v) { return _mm512_reduce_max_epu32((__m512i)v); }
inline uint32_t OrOf(VU v) { return static_cast<uint32_t>(_mm512_reduce_or_epi32((__m512i)v)); }
inline uint32_t SumOf(VU v) { return static_cast<uint32_t>(_mm512_reduce_add_epi32((__m512i)v)); }
#else
inline uint32_t MaxOf(VU v) { return Reduce(v, [](uint32_t a, uint32_t b) { return a > b ? a : b; }); }
inline uint32_t OrOf(VU v) { return Reduce(v, [](uint32_t a, uint32_t b) { return a | b; }); }
inline uint32_t SumOf(VU v) { return Reduce(v, [](uint32_t a, uint32_t b) { return a + b; }); }
#endif

// Positions, unless null, and values of what exceeds the limit, in order; both have room for a vector more.
#if defined(__AVX512F__)
inline void Collect(const uint32_t *u, int size, uint32_t limit, uint16_t *positions, uint32_t *values) {
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(limit));
  __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int i = 0; i < size; i += 16, at = _mm512_add_epi32(at, _mm512_set1_epi32(16))) {
    const __m512i v = _mm512_loadu_si512(u + i);
    const __mmask16 over = _mm512_cmpgt_epu32_mask(v, bound);
    _mm512_storeu_si512(values, _mm512_maskz_compress_epi32(over, v));
    const int count = __builtin_popcount(over);
    values += count;
    if (!positions) continue;
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(positions), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(over, at)));
    positions += count;
  }
}
#else
// A bit for each lane of v that exceeds the limit.
inline uint32_t Over(VU v, uint32_t limit) {
  const VI over = v > All(limit);
#if defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)over));
#else
  uint64_t halves[2];
  std::memcpy(halves, &over, 16);
  if (!(halves[0] | halves[1])) return 0;
  uint32_t bits = 0;
  for (int i = 0; i < kWidth; ++i) bits |= static_cast<uint32_t>(over[i] & 1) << i;
  return bits;
#endif
}
inline void Collect(const uint32_t *u, int size, uint32_t limit, uint16_t *positions, uint32_t *values) {
  for (int i = 0; i < size; i += kWidth) {
    for (uint32_t over = Over(Get(u + i), limit); over; over &= over - 1) {
      const int at = i + __builtin_ctz(over);
      if (positions) *positions++ = static_cast<uint16_t>(at);
      *values++ = u[at];
    }
  }
}
#endif

// Bytes, a bit for each of 64 of them, and what of a mask's places is set.
typedef uint8_t VB __attribute__((vector_size(4 * kWidth)));
typedef uint16_t VH __attribute__((vector_size(4 * kWidth)));
constexpr int kBytes = 4 * kWidth;

inline VB GetBytes(const void *p) {
  VB v;
  std::memcpy(&v, p, sizeof(VB));
  return v;
}
inline VB AllBytes(uint8_t x) { return VB{} + x; }
// The highest bit of each byte.
inline uint64_t HighBits(VB v) {
#if defined(__AVX512F__)
  return _mm512_movepi8_mask((__m512i)v);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_epi8((__m256i)v));
#else
  uint64_t halves[2];
  std::memcpy(halves, &v, 16);
  for (uint64_t &half : halves) half = (half >> 7 & 0x0101010101010101u) * 0x0102040810204080u >> 56;
  return halves[0] | halves[1] << 8;
#endif
}
inline uint64_t AtLeast(VB v, uint8_t limit) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epu8_mask((__m512i)v, _mm512_set1_epi8(static_cast<char>(limit)));
#else
  return HighBits((VB)(v >= AllBytes(limit)));
#endif
}
inline uint64_t AtLeast(const uint8_t *p, uint8_t limit) {
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += kBytes) bits |= AtLeast(GetBytes(p + i), limit) << i;
  return bits;
}
#if defined(__BMI2__)
inline uint64_t Extract(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
inline uint64_t Deposit(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
#else
inline uint64_t Extract(uint64_t x, uint64_t mask) {
  uint64_t result = 0;
  for (int i = 0; mask; mask &= mask - 1, ++i) result |= (x >> __builtin_ctzll(mask) & 1) << i;
  return result;
}
inline uint64_t Deposit(uint64_t x, uint64_t mask) {
  uint64_t result = 0;
  for (; mask; mask &= mask - 1, x >>= 1) result |= (x & 1) << __builtin_ctzll(mask);
  return result;
}
#endif
// All bits of byte i where bit i is set.
inline VB Spread(uint64_t bits) {
#if defined(__AVX512F__)
  return (VB)_mm512_movm_epi8(bits);
#elif defined(__AVX2__)
  const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i one = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i byte = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), which);
  return (VB)_mm256_cmpeq_epi8(_mm256_and_si256(byte, one), one);
#else
  uint64_t halves[2] = {bits & 255, bits >> 8 & 255};
  for (uint64_t &half : halves) {
    half = half * 0x0101010101010101u & 0x8040201008040201u;
    half = ((half + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u) * 255;
  }
  return GetBytes(halves);
#endif
}
// k = min(u >> shift, 255)
inline void Narrow(const uint32_t *u, int size, int shift, uint8_t *k) {
  for (int i = 0; i < size; i += kWidth) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(k + i), _mm512_cvtusepi32_epi8((__m512i)(Get(u + i) >> shift)));
#else
    const VU v = Get(u + i) >> shift, small = v > All(255) ? All(255) : v;
#if defined(__AVX2__)
    const __m256i low = _mm256_shuffle_epi8((__m256i)small, _mm256_set1_epi32(0x0c080400));
    const __m128i bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(k + i), bytes);
#else
    for (int j = 0; j < kWidth; ++j) k[i + j] = static_cast<uint8_t>(small[j]);
#endif
#endif
  }
}
// A register's worth of bytes as 32 bits each; by name, as compilers convert such vectors piece by piece.
inline VU Widened(const uint8_t *p) {
#if defined(__AVX512F__)
  return (VU)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#elif defined(__AVX2__)
  return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
#else
  return VU{p[0], p[1], p[2], p[3]};
#endif
}
// u += k << shift, k being the sum of the weights of those planes that have a one for the value.
template <int Planes, int Words>
inline void AddPlanes(const uint64_t (&planes)[Planes][Words], const uint8_t (&weights)[Planes], int shift, uint32_t *u) {
  for (int first = 0; first < 64 * Words; first += kBytes) {
    VB k = {};
#pragma GCC unroll 8
    for (int p = 0; p < Planes; ++p) k += Spread(planes[p][first / 64] >> first % 64) & AllBytes(weights[p]);
    uint8_t bytes[kBytes];
    std::memcpy(bytes, &k, kBytes);
#pragma GCC unroll 4
    for (int i = 0; i < kBytes; i += kWidth) Put(u + first + i, Get(u + first + i) + (Widened(bytes + i) << shift));
  }
}
// Replaces the values at the ones of `where` by those at `from`, in order.
inline void Fill(uint32_t *u, const uint64_t *where, int words, const uint8_t *from) {
#if defined(__AVX512F__)
  for (int i = 0; i < 64 * words; i += 16) {
    const __mmask16 here = static_cast<__mmask16>(where[i / 64] >> i % 64);
    _mm512_storeu_si512(u + i, _mm512_mask_expandloadu_epi32(_mm512_loadu_si512(u + i), here, from));
    from += 4 * __builtin_popcount(here);
  }
#else
  for (int j = 0; j < words; ++j) {
    for (uint64_t left = where[j]; left; left &= left - 1, from += 4) std::memcpy(&u[64 * j + __builtin_ctzll(left)], from, 4);
  }
#endif
}
// How many of the bytes are at least each limit.
template <int Size, int Limits>
inline void CountBytes(const uint8_t *k, const uint8_t (&limits)[Limits], int *counts) {
  for (int l = 0; l < Limits; ++l) {
    int count = 0;
#if defined(__AVX512F__)
#pragma GCC unroll 8
    for (int i = 0; i < Size; i += 64) count += __builtin_popcountll(AtLeast(k + i, limits[l]));
#else
    static_assert(Size / kBytes < 128);
    VB sums = {};
    for (int i = 0; i < Size; i += kBytes) sums -= (VB)(GetBytes(k + i) >= AllBytes(limits[l]));
    uint64_t eights[kBytes / 8];
    std::memcpy(eights, &sums, kBytes);
    for (const uint64_t eight : eights) {
      const uint64_t pairs = (eight & 0x00ff00ff00ff00ffu) + (eight >> 8 & 0x00ff00ff00ff00ffu);
      count += static_cast<int>(pairs * 0x0001000100010001u >> 48);
    }
#endif
    counts[l] = count;
  }
}
// Of 64 bytes the four lowest bits of min(byte >> shift, most) - less, a word for each bit.
inline void BitsAbove(const uint8_t *k, int shift, uint8_t less, uint8_t most, int word, uint64_t bits[4][8]) {
  for (int bit = 0; bit < 4; ++bit) bits[bit][word] = 0;
  for (int i = 0; i < 64; i += kBytes) {
    VB v = (VB)((VH)GetBytes(k + i) >> shift) & AllBytes(static_cast<uint8_t>(255 >> shift));
    v = (v < AllBytes(most) ? v : AllBytes(most)) - AllBytes(less);
    for (int bit = 0; bit < 4; ++bit) bits[bit][word] |= HighBits((VB)((VH)v << (7 - bit))) << i;
  }
}
