// Activations and weights: packing rows for the panels, and multiplying them. Part of kernels.inl.
void PackFloat(const float *x, int64_t row, const Acts &acts) {
  float *out = acts.f + row / acts.m * acts.k * acts.m + row % acts.m;
  for (int64_t i = 0; i < acts.k; ++i) out[i * acts.m] = x[i];
}

// Symmetric int8 with one scale a group of the weight (a whole row for W8A8 without groups): scale = max|x| / 127,
// q = round(x * (127 / max|x|)) to nearest even. A NaN or infinity in a group makes its scale NaN. One scale a token
// costs SmolLM2 3.3 % of perplexity, one a group of 32 costs 0.4 %.
void PackInt8(const float *x, int64_t row, const Acts &acts) {
  const int64_t m = acts.m, tile = row / m, lane = row % m, step = acts.group ? acts.group : acts.kp;
  int8_t *q = acts.q + tile * acts.kp * m + lane * 4;
  const int64_t at = tile * acts.groups * m + lane;
  for (int64_t g = 0; g < acts.groups; ++g) {
    const int64_t begin = g * step, end = begin + step < acts.kp ? begin + step : acts.kp;
    F16 top = {}, poison = {};
    for (int64_t i = begin; i < end; i += 16) {
      const int n = static_cast<int>(acts.k - i < 16 ? (acts.k > i ? acts.k - i : 0) : 16);
      const F16 v = n == 16 ? Load(x + i) : LoadPart(x + i, n);
      top = Max(top, Abs(v));
      poison += v * Set(0.0f);
    }
    const float peak = MaxLane(top);
    const bool finite = Sum(poison) == 0.0f;
    const F16 inverse = Set(finite && peak > 1e-30f ? 127.0f / peak : 0.0f);
    I16 sums = {};
    for (int64_t i = begin; i < end; i += 16) {
      const int n = static_cast<int>(acts.k - i < 16 ? (acts.k > i ? acts.k - i : 0) : 16);
      const F16 v = n == 16 ? Load(x + i) : LoadPart(x + i, n);
      const I16 r = finite ? RoundToInt(v * inverse) : I16{};
      alignas(16) int8_t bytes[16];
      StoreBytes(bytes, r);
      sums += r;
      for (int j = 0; j < 4; ++j) std::memcpy(q + (i / 4 + j) * m * 4, bytes + 4 * j, 4);
    }
    int32_t sum = 0;
    for (int j = 0; j < 16; ++j) sum += sums[j];
    const float scale = peak > 1e-30f ? peak / 127.0f + Sum(poison) : Sum(poison);
    acts.scale[at + g * m] = scale;
    acts.isum[at + g * m] = sum;
    acts.sum[at + g * m] = scale * static_cast<float>(sum);
  }
}


// acc[lane] += sum over 4 k of w[lane * 4 + k] (unsigned) * the four signed bytes at a.
template <bool kWide>
inline I16 Dot(I16 acc, U64 w, const int8_t *a) {
#if defined(__AVX512VNNI__)
  int32_t quad;
  std::memcpy(&quad, a, 4);
  return (I16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(quad));
#elif defined(__AVX2__)
  // Products of pairs must fit int16: the high bit of a full byte is multiplied apart.
  int32_t quad;
  std::memcpy(&quad, a, 4);
  const __m256i b = _mm256_set1_epi32(quad), ones = _mm256_set1_epi16(1);
  __m256i v[2], s[2];
  std::memcpy(v, &w, 64);
  std::memcpy(s, &acc, 64);
  for (int i = 0; i < 2; ++i) {
    const __m256i low = kWide ? _mm256_and_si256(v[i], _mm256_set1_epi8(0x7f)) : v[i];
    s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_maddubs_epi16(low, b), ones));
    if (kWide) {
      const __m256i high = _mm256_and_si256(v[i], _mm256_set1_epi8(static_cast<char>(0x80)));
      s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_maddubs_epi16(high, b), ones));
    }
  }
  std::memcpy(&acc, s, 64);
  return acc;
#else
  for (int lane = 0; lane < 16; ++lane)
    for (int j = 0; j < 4; ++j) acc[lane] += static_cast<int32_t>(w[lane * 4 + j]) * a[j];
  return acc;
#endif
}

inline U64 LoadBytes(const uint8_t *p) {
  U64 v;
  std::memcpy(&v, p, 64);
  return v;
}
inline U64 LowNibbles(U64 v) { return v & 15; }
inline U64 HighNibbles(U64 v) {
#if defined(__AVX512BW__)
  return (U64)_mm512_and_si512(_mm512_srli_epi16((__m512i)v, 4), _mm512_set1_epi8(15));
#else
  return v >> 4;
#endif
}

// The integer at (lane, k) of a quantized panel, without its scale.
inline int32_t Quant(const Weight &w, const uint8_t *panel, int lane, int64_t k) {
  if (w.kind == msms::kW8) return static_cast<int32_t>(panel[k / 4 * 64 + lane * 4 + k % 4]) - 128;
  const int64_t in = k % 32;
  const uint8_t byte = panel[k / 32 * 256 + in % 16 / 4 * 64 + lane * 4 + in % 4];
  return (in < 16 ? byte & 15 : byte >> 4) - (w.asym ? 0 : 8);
}
inline F16 GroupScale(const Weight &w, const uint8_t *panel, int64_t g) {
  const uint8_t *p = panel + w.scale_at;
  return w.group ? LoadHalf(reinterpret_cast<const uint16_t *>(p) + g * 16) : Load(reinterpret_cast<const float *>(p));
}
inline F16 GroupMin(const Weight &w, const uint8_t *panel, int64_t g) {
  return w.asym ? LoadHalf(reinterpret_cast<const uint16_t *>(panel + w.min_at) + g * 16) : F16{};
}

inline I16 Recentred(I16 acc, int32_t isum, int32_t offset) { return acc - isum * offset; }

// P panels by M rows. Integer sums are exact; each group then adds scale_w * scale_a * sum in group order.
template <bool kWide, bool kAsym, int M, int P>
void PanelsInt8(const Weight &w, const uint8_t *panel, const Acts &acts, int64_t tile, int64_t first, float *out, int64_t stride) {
  const int64_t m = acts.m, step = w.group ? w.group : w.kp, at = tile * acts.groups * m + first;
  const int8_t *a = acts.q + tile * acts.kp * m + first * 4;
  const float *scale = acts.scale + at, *sum = acts.sum + at;
  const int32_t *isum = acts.isum + at;
  // The first rows meet a cold panel: ask for the next ones while these are multiplied.
  const uint8_t *next = panel + P * w.panel_bytes;
  const int64_t ahead = tile == 0 && first == 0 ? P * w.panel_bytes * 32 / w.kp : 0;
  F16 total[M][P] = {};
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t end = (g + 1) * step < w.kp ? (g + 1) * step : w.kp;
    I16 acc[M][P] = {};
    for (int64_t k = g * step; k < end; k += 32) {
      for (int64_t i = 0; i < ahead; i += 64) __builtin_prefetch(next + i);
      next += ahead;
      for (int j = 0; j < (kWide ? 8 : 4); ++j) {
        U64 low[P], high[P];
        for (int p = 0; p < P; ++p) {
          const U64 v = LoadBytes(panel + p * w.panel_bytes + k * (kWide ? 16 : 8) + j * 64);
          low[p] = kWide ? v : LowNibbles(v);
          high[p] = HighNibbles(v);
        }
        const int8_t *quads = a + (k + j * 4) * m;
        for (int r = 0; r < M; ++r)
          for (int p = 0; p < P; ++p) acc[r][p] = Dot<kWide>(acc[r][p], low[p], quads + r * 4);
        if (!kWide)
          for (int r = 0; r < M; ++r)
            for (int p = 0; p < P; ++p) acc[r][p] = Dot<kWide>(acc[r][p], high[p], quads + 16 * m + r * 4);
      }
    }
    for (int p = 0; p < P; ++p) {
      const F16 d = GroupScale(w, panel + p * w.panel_bytes, g);
      const F16 low = kAsym ? GroupMin(w, panel + p * w.panel_bytes, g) : F16{};
      for (int r = 0; r < M; ++r) {
        const I16 integer = kAsym ? acc[r][p] : Recentred(acc[r][p], isum[g * m + r], kWide ? 128 : 8);
        total[r][p] = Fma(ToFloat(integer), d * Set(scale[g * m + r]), total[r][p]);
        if (kAsym) total[r][p] = Fma(low, Set(sum[g * m + r]), total[r][p]);
      }
    }
  }
  for (int r = 0; r < M; ++r)
    for (int p = 0; p < P; ++p) Store(out + r * stride + p * 16, total[r][p]);
}

template <int M, int P>
void PanelsFloat(const Weight &w, const float *panel, int64_t distance, const Acts &acts, int64_t tile, float *out, int64_t stride) {
  const int64_t m = acts.m;
  const float *a = acts.f + tile * acts.k * m;
  F16 total[M][P] = {};
  for (int64_t k = 0; k < w.k; ++k) {
    F16 v[P];
    for (int p = 0; p < P; ++p) v[p] = Load(panel + p * distance + k * 16);
    for (int r = 0; r < M; ++r) {
      const F16 x = Set(a[k * m + r]);
      for (int p = 0; p < P; ++p) total[r][p] = Fma(v[p], x, total[r][p]);
    }
  }
  for (int r = 0; r < M; ++r)
    for (int p = 0; p < P; ++p) Store(out + r * stride + p * 16, total[r][p]);
}

// Float weights of a quantized panel, for schemes with float activations: [k][16].
void UnpackPanel(const Weight &w, const uint8_t *panel, float *out) {
  const int64_t step = w.group ? w.group : w.kp;
  for (int64_t g = 0; g < w.groups; ++g) {
    const F16 d = GroupScale(w, panel, g), low = GroupMin(w, panel, g);
    for (int64_t k = g * step; k < (g + 1) * step && k < w.k; ++k) {
      I16 q;
      for (int lane = 0; lane < 16; ++lane) q[lane] = Quant(w, panel, lane, k);
      Store(out + k * 16, ToFloat(q) * d + low);
    }
  }
}

void UnpackRow(const Weight &w, const uint8_t *panel, int lane, float *out) {
  if (w.kind == msms::kF32) {
    for (int64_t k = 0; k < w.k; ++k) std::memcpy(out + k, panel + (k * 16 + lane) * 4, 4);
    return;
  }
  const int64_t step = w.group ? w.group : w.kp;
  for (int64_t g = 0; g < w.groups; ++g) {
    const float d = GroupScale(w, panel, g)[lane], low = GroupMin(w, panel, g)[lane];
    for (int64_t k = g * step; k < (g + 1) * step && k < w.k; ++k)
      out[k] = static_cast<float>(Quant(w, panel, lane, k)) * d + low;
  }
}

constexpr int kRows8 = 6;  // rows that the integer kernel keeps in registers beside two panels

template <int M, int P>
void RowsInt8(const Weight &w, const uint8_t *panel, const Acts &acts, int64_t tile, int64_t first, float *out, int64_t stride) {
  if (w.kind == msms::kW8) {
    PanelsInt8<true, false, M, P>(w, panel, acts, tile, first, out, stride);
  } else if (w.asym) {
    PanelsInt8<false, true, M, P>(w, panel, acts, tile, first, out, stride);
  } else {
    PanelsInt8<false, false, M, P>(w, panel, acts, tile, first, out, stride);
  }
}

void PanelsQuantized(const Weight &w, const uint8_t *panel, int count, const Acts &acts, float *out, int64_t stride) {
  for (int64_t row = 0; row < acts.rows;) {
    const int64_t tile = row / acts.m, first = row % acts.m, in_tile = (acts.m < acts.rows - tile * acts.m ? acts.m : acts.rows - tile * acts.m) - first;
    const int64_t rows = in_tile < kRows8 ? in_tile : kRows8;
    float *to = out + row * stride;
    if (rows == kRows8 && count == 2) {
      RowsInt8<kRows8, 2>(w, panel, acts, tile, first, to, stride);
    } else {
      for (int p = 0; p < count; ++p, to += 16) {
        const uint8_t *one = panel + p * w.panel_bytes;
        switch (rows) {
          case 1: RowsInt8<1, 1>(w, one, acts, tile, first, to, stride); break;
          case 2: RowsInt8<2, 1>(w, one, acts, tile, first, to, stride); break;
          case 3: RowsInt8<3, 1>(w, one, acts, tile, first, to, stride); break;
          case 4: RowsInt8<4, 1>(w, one, acts, tile, first, to, stride); break;
          case 5: RowsInt8<5, 1>(w, one, acts, tile, first, to, stride); break;
          default: RowsInt8<kRows8, 1>(w, one, acts, tile, first, to, stride); break;
        }
      }
    }
    row += rows;
  }
}

template <int P>
void RowsFloat(const Weight &w, const float *panel, int64_t distance, const Acts &acts, int64_t tile, int64_t rows, float *out, int64_t stride) {
  switch (rows) {
    case 1: PanelsFloat<1, P>(w, panel, distance, acts, tile, out, stride); break;
    case 2: PanelsFloat<2, P>(w, panel, distance, acts, tile, out, stride); break;
    case 3: PanelsFloat<3, P>(w, panel, distance, acts, tile, out, stride); break;
    case 4: PanelsFloat<4, P>(w, panel, distance, acts, tile, out, stride); break;
    case 5: PanelsFloat<5, P>(w, panel, distance, acts, tile, out, stride); break;
    case 6: PanelsFloat<6, P>(w, panel, distance, acts, tile, out, stride); break;
    case 7: PanelsFloat<7, P>(w, panel, distance, acts, tile, out, stride); break;
    case 8: PanelsFloat<8, P>(w, panel, distance, acts, tile, out, stride); break;
    case 9: PanelsFloat<9, P>(w, panel, distance, acts, tile, out, stride); break;
    case 10: PanelsFloat<10, P>(w, panel, distance, acts, tile, out, stride); break;
    case 11: PanelsFloat<11, P>(w, panel, distance, acts, tile, out, stride); break;
    default: PanelsFloat<12, P>(w, panel, distance, acts, tile, out, stride); break;
  }
}

void Panels(const Weight &w, const uint8_t *panel, int count, const Acts &acts, float *out, int64_t stride, float *scratch) {
  if (w.kind != msms::kF32 && w.act) return PanelsQuantized(w, panel, count, acts, out, stride);
  const float *floats = reinterpret_cast<const float *>(panel);
  if (w.kind != msms::kF32) {
    for (int p = 0; p < count; ++p) UnpackPanel(w, panel + p * w.panel_bytes, scratch + p * w.k * 16);
    floats = scratch;
  }
  const int64_t distance = w.k * 16;
  for (int64_t row = 0; row < acts.rows; row += acts.m) {
    const int64_t rows = acts.rows - row < acts.m ? acts.rows - row : acts.m, tile = row / acts.m;
    if (count == 2) RowsFloat<2>(w, floats, distance, acts, tile, rows, out + row * stride, stride);
    else RowsFloat<1>(w, floats, distance, acts, tile, rows, out + row * stride, stride);
  }
}
