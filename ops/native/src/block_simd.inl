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

// Positions and values of what exceeds the limit among `size` values, in order; both have room for a vector more.
#if defined(__AVX512F__)
inline void Collect(const uint32_t *u, int size, uint32_t limit, uint16_t *positions, uint32_t *values) {
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(limit));
  __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int i = 0; i < size; i += 16, at = _mm512_add_epi32(at, _mm512_set1_epi32(16))) {
    const __m512i v = _mm512_loadu_si512(u + i);
    const __mmask16 over = _mm512_cmpgt_epu32_mask(v, bound);
    _mm512_storeu_si512(values, _mm512_maskz_compress_epi32(over, v));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(positions), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(over, at)));
    const int count = __builtin_popcount(over);
    values += count;
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
      *positions++ = static_cast<uint16_t>(at);
      *values++ = u[at];
    }
  }
}
#endif
