// Packing of the operands of a matrix product. Part of kernels_gemm.inl.

// out[k * kNr + i] = in[i * stride + k] for kVec rows i and kVec columns k.
#if defined(__AVX512F__)
inline void Transpose(const float *in, int64_t stride, float *out) {
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(in + i * stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(out + i * kNr, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(out + (i + 4) * kNr, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_storeu_ps(out + (i + 8) * kNr, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    _mm512_storeu_ps(out + (i + 12) * kNr, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
  }
}
#else
inline void Transpose(const float *in, int64_t stride, float *out) {
  for (int k = 0; k < kVec; k += 4)
    for (int i = 0; i < kVec; i += 4) {
      typedef float Four __attribute__((vector_size(16)));
      typedef int32_t Order __attribute__((vector_size(16)));
      Four r[4];
      for (int j = 0; j < 4; ++j) std::memcpy(&r[j], in + (i + j) * stride + k, 16);
      const Four a = __builtin_shuffle(r[0], r[1], Order{0, 4, 1, 5}), b = __builtin_shuffle(r[0], r[1], Order{2, 6, 3, 7});
      const Four c = __builtin_shuffle(r[2], r[3], Order{0, 4, 1, 5}), d = __builtin_shuffle(r[2], r[3], Order{2, 6, 3, 7});
      const Four columns[4] = {__builtin_shuffle(a, c, Order{0, 1, 4, 5}), __builtin_shuffle(a, c, Order{2, 3, 6, 7}),
                               __builtin_shuffle(b, d, Order{0, 1, 4, 5}), __builtin_shuffle(b, d, Order{2, 3, 6, 7})};
      for (int j = 0; j < 4; ++j) std::memcpy(out + (k + j) * kNr + i, &columns[j], 16);
    }
}
#endif

void PackPanels(const msms::GemmArgs &g, const msms::GemmBlock &block, float *panels) {
  const int64_t depth = block.k1 - block.k0;
  if (!g.b_transposed) {
    for (int64_t k = 0; k < depth; ++k) {
      const float *row = g.b + (block.k0 + k) * g.ldb;
      float *out = panels + k * kNr;
      int64_t j = block.j0;
      for (; j + kNr <= block.j1; j += kNr, out += depth * kNr) {
        VStore(out, VLoad(row + j));
        VStore(out + kVec, VLoad(row + j + kVec));
      }
      for (int i = 0; j < block.j1 && i < kNr; ++i) out[i] = j + i < block.j1 ? row[j + i] : 0.0f;
    }
    return;
  }
  for (int64_t j = block.j0; j < block.j1; j += kVec) {
    const int64_t column = (j - block.j0) % kNr;
    float *out = panels + (j - block.j0 - column) * depth + column;
    const int rows = static_cast<int>(block.j1 - j < kVec ? block.j1 - j : kVec);
    const float *in = g.b + j * g.ldb + block.k0;
    int64_t k = 0;
    if (rows == kVec)
      for (; k + kVec <= depth; k += kVec) Transpose(in + k, g.ldb, out + k * kNr);
    for (; k < depth; ++k)
      for (int i = 0; i < kVec; ++i) out[k * kNr + i] = i < rows ? in[i * g.ldb + k] : 0.0f;
  }
}

// A stored [m, k]: rows kDepth apart.
inline void PackRows(const msms::GemmArgs &g, const msms::GemmBlock &block, float *rows) {
  for (int64_t i = block.i0; i < block.i1; ++i, rows += kDepth)
    std::memcpy(rows, g.a + i * g.lda + block.k0, static_cast<size_t>(block.k1 - block.k0) * 4);
}

// A stored [k, m]: for each tile its columns.
inline void PackColumns(const msms::GemmArgs &g, const msms::GemmBlock &block, float *rows) {
  const int64_t depth = block.k1 - block.k0;
  for (int64_t k = 0; k < depth; ++k) {
    const float *in = g.a + (block.k0 + k) * g.lda;
    float *out = rows;
    for (int64_t i = block.i0; i < block.i1;) {
      const int count = TileRows(block.i1 - i);
      if (count == kMr) std::memcpy(out + k * kMr, in + i, kMr * 4);
      else std::memcpy(out + k * count, in + i, static_cast<size_t>(count) * 4);
      out += depth * count;
      i += count;
    }
  }
}
