// The paged cache's layout, and attention over it. Part of kernels.inl.
void StoreKv(const float *k, const float *v, int64_t dim, int64_t block, int64_t slot, bool half, uint8_t *key_block,
             uint8_t *value_block) {
  const int64_t padded = (dim + 15) / 16 * 16;
  for (int64_t i = 0; i < padded; i += 16) {
    const int n = static_cast<int>(dim - i < 16 ? dim - i : 16);
    const F16 key = LoadPart(k + i, n), value = LoadPart(v + i, n);
    if (half) {
      uint16_t bits[16];
      StoreHalf(bits, key);
      uint16_t *to = reinterpret_cast<uint16_t *>(key_block) + i * block + slot;
      for (int j = 0; j < 16; ++j) to[j * block] = bits[j];
      StoreHalf(reinterpret_cast<uint16_t *>(value_block) + slot * padded + i, value);
    } else {
      float *to = reinterpret_cast<float *>(key_block) + i * block + slot;
      for (int j = 0; j < 16; ++j) to[j * block] = key[j];
      Store(reinterpret_cast<float *>(value_block) + slot * padded + i, value);
    }
  }
}

template <bool kHalf>
inline F16 LoadCache(const uint8_t *base, int64_t index) {
  return kHalf ? LoadHalf(reinterpret_cast<const uint16_t *>(base) + index) : Load(reinterpret_cast<const float *>(base) + index);
}

// Scores of R rows against the keys; positions are lanes, so no sum crosses them.
template <bool kHalf, int R, int U>
void Scores(const AttendJob &job, int64_t begin, int64_t position) {
  const uint8_t *keys = job.Keys(position);
  const int64_t inside = position % job.block;
  F16 acc[R][U] = {};
  for (int64_t d = 0; d < job.dim; ++d) {
    for (int u = 0; u < U; ++u) {
      const F16 key = LoadCache<kHalf>(keys, d * job.block + inside + u * 16);
      for (int r = 0; r < R; ++r) acc[r][u] = Fma(Set(job.q[begin + r][d]), key, acc[r][u]);
    }
  }
  const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int r = 0; r < R; ++r) {
    for (int u = 0; u < U; ++u) {
      const int64_t left = job.length[begin + r] - position - u * 16;
      F16 s = acc[r][u] * Set(job.scale);
      if (left < 16) {
        const I16 outside = lane >= static_cast<int32_t>(left < 0 ? 0 : left);
        const I16 infinity = (I16)Set(-std::numeric_limits<float>::infinity());
        s = (F16)(((I16)s & ~outside) | (infinity & outside));
      }
      Store(job.scores + (begin + r) * job.stride + position + u * 16, s);
    }
  }
}

inline float Softmax(float *s, int64_t length) {
  F16 top = Load(s);
  for (int64_t i = 16; i < length; i += 16) top = Max(top, Load(s + i));
  const F16 peak = Set(MaxLane(top));
  F16 sum = {};
  for (int64_t i = 0; i < length; i += 16) {
    const F16 e = Exp(Load(s + i) - peak);
    Store(s + i, e);
    sum += e;
  }
  return 1.0f / Sum(sum);
}

// R rows, C chunks of 16 dimensions; a row never reads a value beyond its own length, stale slots may hold anything.
template <bool kHalf, int R, int C>
void Values(const AttendJob &job, int64_t begin, int64_t d, const float *inverse) {
  const int64_t padded = (job.dim + 15) / 16 * 16;
  const float *scores = job.scores + begin * job.stride;
  int64_t common = job.length[begin];
  for (int r = 1; r < R; ++r) common = job.length[begin + r] < common ? job.length[begin + r] : common;
  F16 acc[R][C] = {};
  for (int64_t start = 0; start < common; start += job.block) {
    const uint8_t *values = job.Values(start);
    const int64_t n = common - start < job.block ? common - start : job.block;
    for (int64_t j = 0; j < n; ++j) {
      for (int c = 0; c < C; ++c) {
        const F16 value = LoadCache<kHalf>(values, j * padded + d + c * 16);
        for (int r = 0; r < R; ++r) acc[r][c] = Fma(Set(scores[r * job.stride + start + j]), value, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      F16 total = acc[r][c];
      for (int64_t j = common; j < job.length[begin + r]; ++j) {
        const F16 value = LoadCache<kHalf>(job.Values(j), j % job.block * padded + d + c * 16);
        total = Fma(Set(scores[r * job.stride + j]), value, total);
      }
      total = total * Set(inverse[r]);
      const int64_t at = d + c * 16;
      if (at + 16 <= job.dim) Store(job.out[begin + r] + at, total);
      else StorePart(job.out[begin + r] + at, total, static_cast<int>(job.dim - at));
    }
  }
}

template <bool kHalf, int R>
void AttendRows(const AttendJob &job, int64_t begin) {
  int64_t longest = 0;
  for (int r = 0; r < R; ++r) longest = job.length[begin + r] > longest ? job.length[begin + r] : longest;
  int64_t position = 0;
  if (R <= 4 && job.block >= 32)
    for (; position < longest; position += 32) Scores<kHalf, R, R <= 4 ? 2 : 1>(job, begin, position);
  for (; position < longest; position += 16) Scores<kHalf, R, 1>(job, begin, position);
  float inverse[R];
  for (int r = 0; r < R; ++r) inverse[r] = Softmax(job.scores + (begin + r) * job.stride, job.length[begin + r]);
  constexpr int kChunks = R <= 4 ? 4 : 2;
  const int64_t padded = (job.dim + 15) / 16 * 16;
  int64_t d = 0;
  for (; d + kChunks * 16 <= padded; d += kChunks * 16) Values<kHalf, R, kChunks>(job, begin, d, inverse);
  for (; d < padded; d += 16) Values<kHalf, R, 1>(job, begin, d, inverse);
}

template <bool kHalf>
void AttendAll(const AttendJob &job) {
  int64_t r = 0;
  while (r < job.rows) {
    switch (job.rows - r) {
      case 1: AttendRows<kHalf, 1>(job, r); r += 1; break;
      case 2: AttendRows<kHalf, 2>(job, r); r += 2; break;
      case 3: AttendRows<kHalf, 3>(job, r); r += 3; break;
      case 4: case 5: AttendRows<kHalf, 4>(job, r); r += 4; break;
      case 6: case 7: AttendRows<kHalf, 6>(job, r); r += 6; break;
      default: AttendRows<kHalf, 8>(job, r); r += 8; break;
    }
  }
}
void Attend(const AttendJob &job) { job.half ? AttendAll<true>(job) : AttendAll<false>(job); }
