// What the operators of training share: sizes that cannot overflow, elementwise loops, sums over rows in a fixed order.
#pragma once
#include <algorithm>

#include "args.h"
#include "train.h"

namespace msms {
constexpr int64_t kPiece = int64_t{1} << 14;  // elements that one thread takes at a time
constexpr int64_t kMostElements = int64_t{1} << 45;

// Elements of an input; -1 when no memory could hold them.
inline int64_t Elements(const Args &a, int i) {
  int64_t size = 1;
  bool none = false;
  for (int d = 0; d < a.Rank(i); ++d) {
    if (a.Dim(i, d) < 0) return -1;
    if (a.Dim(i, d) == 0) none = true;
    else if (size > kMostElements / a.Dim(i, d)) return -1;
    else size *= a.Dim(i, d);
  }
  return none ? 0 : size;
}

// kOk when the first `inputs` are float32 of one shape.
inline int CheckAlike(const Args &a, int inputs) {
  for (int i = 0; i < inputs; ++i)
    if (!a.Is(i, "float32")) return kType;
  for (int i = 1; i < inputs; ++i)
    if (!a.Same(0, i)) return kShape;
  return Elements(a, 0) < 0 ? kShape : kOk;
}

// The time of a shared loop counts for the operator that calls it: hence the names.
// body(begin, n) over pieces; they are multiples of 16, so an element meets the same arithmetic wherever the cut falls.
template <class Body>
void ForElements(int64_t size, const Body &body, const char *name = __builtin_FUNCTION()) {
  Pool &pool = Pool::Get();
  auto lock = pool.Lock(name);
  pool.For(size, kPiece, [&](int64_t begin, int64_t end, int) { body(begin, end - begin); });
}

// Rows summed into `outputs` vectors [h], in chunks of rows that depend on the sizes alone and are added in order.
// body(row, sums): sums[i] is the chunk's partial sum of output i.
template <int kOutputs, class Body>
void SumOverRows(int64_t rows, int64_t h, float *const (&out)[kOutputs], const Body &body, const char *name = __builtin_FUNCTION()) {
  Pool &pool = Pool::Get();
  auto lock = pool.Lock(name);
  const int64_t chunk = std::max({int64_t{1}, std::min<int64_t>(64, kPiece / h), (rows + 255) / 256});
  const int64_t chunks = (rows + chunk - 1) / chunk, width = kOutputs * h;
  float *partial = reinterpret_cast<float *>(pool.Scratch(static_cast<size_t>(std::max<int64_t>(1, chunks * width)) * 4));
  pool.For(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c) {
      float *sums[kOutputs];
      for (int i = 0; i < kOutputs; ++i) sums[i] = partial + c * width + i * h;
      std::memset(partial + c * width, 0, static_cast<size_t>(width) * 4);
      for (int64_t r = c * chunk; r < std::min(rows, (c + 1) * chunk); ++r) body(r, sums);
    }
  });
  pool.For(width, std::max<int64_t>(64, kPiece / std::max<int64_t>(1, chunks)), [&](int64_t begin, int64_t end, int) {
    for (int i = 0; i < kOutputs; ++i) {
      const int64_t first = std::max(begin, i * h), last = std::min(end, (i + 1) * h);
      if (first >= last || !out[i]) continue;
      float *to = out[i] + first - i * h;
      std::memset(to, 0, static_cast<size_t>(last - first) * 4);
      for (int64_t c = 0; c < chunks; ++c) {
        const float *from = partial + c * width + first;
        for (int64_t k = 0; k < last - first; ++k) to[k] += from[k];
      }
    }
  });
}
}  // namespace msms

// The inference of several outputs of one dtype.
#define MSMS_INFER_SEVERAL(name, count, ...)                                                                             \
  extern "C" std::vector<std::vector<int64_t>> name##InferShape(int *ndims, int64_t **shapes, AotExtra *extra) {         \
    (void)ndims; (void)shapes; (void)extra;                                                                              \
    return __VA_ARGS__;                                                                                                  \
  }                                                                                                                      \
  extern "C" std::vector<int> name##InferType(std::vector<int>, AotExtra *) { return std::vector<int>(count, kFloat32); }
