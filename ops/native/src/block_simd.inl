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
template <class Fold>
inline uint32_t Reduce(VU v, Fold fold) {
  uint32_t result = v[0];
  for (int i = 1; i < kWidth; ++i) result = fold(result, v[i]);
  return result;
}

// A bit for each lane of v that exceeds the limit.
#if defined(__AVX512F__)
inline uint32_t Over(VU v, uint32_t limit) { return _mm512_cmpgt_epu32_mask((__m512i)v, _mm512_set1_epi32(static_cast<int>(limit))); }
#elif defined(__AVX2__)
inline uint32_t Over(VU v, uint32_t limit) { return static_cast<uint32_t>(_mm256_movemask_ps((__m256)(v > All(limit)))); }
#else
inline uint32_t Over(VU v, uint32_t limit) {
  const VI over = v > All(limit);
  uint64_t halves[2];
  std::memcpy(halves, &over, 16);
  if (!(halves[0] | halves[1])) return 0;
  uint32_t bits = 0;
  for (int i = 0; i < kWidth; ++i) bits |= static_cast<uint32_t>(over[i] & 1) << i;
  return bits;
}
#endif
