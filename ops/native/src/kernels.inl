// The kernels, written once; each instruction set includes this file into its own namespace (MSMS_ISA).
// Every output element is computed by one fixed sequence of operations, whatever the number of rows beside it.
#include <cmath>
#include <limits>
#include <utility>

#include "block.h"
#include "flash.h"
#include "gemm.h"
#include "kernels.h"
#include "simd.h"
#include "train.h"

namespace MSMS_ISA {
using msms::Acts;
using msms::AttendJob;
using msms::kTile;
using msms::Weight;

void RmsNorm(const float *x, const float *w, float eps, int64_t h, float *y) {
  F16 a = {}, b = {};
  int64_t i = 0;
  for (; i + 32 <= h; i += 32) {
    const F16 u = Load(x + i), v = Load(x + i + 16);
    a = Fma(u, u, a);
    b = Fma(v, v, b);
  }
  for (; i < h; i += 16) {
    const F16 u = LoadPart(x + i, static_cast<int>(h - i < 16 ? h - i : 16));
    a = Fma(u, u, a);
  }
  const F16 scale = Set(1.0f / std::sqrt(Sum(a + b) / static_cast<float>(h) + eps));
  for (i = 0; i + 16 <= h; i += 16) Store(y + i, Load(x + i) * scale * Load(w + i));
  if (const int n = static_cast<int>(h - i)) StorePart(y + i, LoadPart(x + i, n) * scale * LoadPart(w + i, n), n);
}

void Swiglu(const float *gate, const float *up, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, Silu(Load(gate + i)) * Load(up + i));
  if (const int left = static_cast<int>(n - i)) StorePart(y + i, Silu(LoadPart(gate + i, left)) * LoadPart(up + i, left), left);
}

void Add(const float *a, const float *b, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, Load(a + i) + Load(b + i));
  for (; i < n; ++i) y[i] = a[i] + b[i];
}

void Rope(const float *x, const float *table, int64_t dim, float *y) {
  const int64_t half = dim / 2;
  int64_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const F16 a = Load(x + i), b = Load(x + half + i), cos = Load(table + i), sin = Load(table + half + i);
    Store(y + i, a * cos - b * sin);
    Store(y + half + i, b * cos + a * sin);
  }
  if (i == half) return;
  const int n = static_cast<int>(half - i);
  const F16 a = LoadPart(x + i, n), b = LoadPart(x + half + i, n), cos = LoadPart(table + i, n), sin = LoadPart(table + half + i, n);
  StorePart(y + i, a * cos - b * sin, n);
  StorePart(y + half + i, b * cos + a * sin, n);
}

#include "kernels_linear.inl"

#include "kernels_attention.inl"

#include "kernels_gemm.inl"

#include "kernels_flash.inl"

#include "kernels_train.inl"

#include "kernels_block.inl"
}  // namespace MSMS_ISA

#define MSMS_TABLE(symbol, label)                                                                                     \
  const msms::Kernels msms::symbol = {label, MSMS_ISA::RmsNorm, MSMS_ISA::PackFloat, MSMS_ISA::PackInt8,              \
                                      MSMS_ISA::Panels, MSMS_ISA::UnpackRow,  MSMS_ISA::Swiglu, MSMS_ISA::Add,        \
                                      MSMS_ISA::Rope, MSMS_ISA::StoreKv, MSMS_ISA::Attend,           \
                                      &MSMS_ISA::kGemm, &MSMS_ISA::kFlash, &MSMS_ISA::kTrain, &MSMS_ISA::kBlock};
