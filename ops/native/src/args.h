// What an operator receives, checked before any memory is touched.
#pragma once
#include <cstdint>
#include <cstring>
#include <new>

#include "aot_extra.h"
#include "kernels.h"
#include "pool.h"

namespace msms {
constexpr int kFloat32 = 43;  // MindSpore's type id
enum Code : int {
  kOk = 0, kCount = 1, kShape = 2, kType = 3, kArena = 4, kToken = 5, kSlot = 6, kBlock = 7, kPosition = 8,
  kStarts = 9, kRows = 10, kAttribute = 11, kMemory = 12
};

class Args {
 public:
  Args(int n, void **data, int *ndims, int64_t **shapes, const char **types) : n_(n), data_(data), ndims_(ndims), shapes_(shapes), types_(types) {}
  bool Count(int n) const { return n_ == n && data_ && ndims_ && shapes_ && types_; }
  bool Is(int i, const char *type, int rank = -1) const { return !std::strcmp(types_[i], type) && (rank < 0 || ndims_[i] == rank); }
  int64_t Dim(int i, int d) const { return shapes_[i][d]; }
  int Rank(int i) const { return ndims_[i]; }
  int64_t Size(int i) const {
    int64_t size = 1;
    for (int d = 0; d < ndims_[i]; ++d) size *= shapes_[i][d];
    return size;
  }
  bool Same(int i, int j) const {
    if (ndims_[i] != ndims_[j]) return false;
    for (int d = 0; d < ndims_[i]; ++d)
      if (shapes_[i][d] != shapes_[j][d]) return false;
    return true;
  }
  const float *F(int i) const { return static_cast<const float *>(data_[i]); }
  const int32_t *I(int i) const { return static_cast<const int32_t *>(data_[i]); }
  uint8_t *Bytes(int i) const { return static_cast<uint8_t *>(data_[i]); }
  float *Out(int i) const { return static_cast<float *>(data_[i]); }

 private:
  int n_;
  void **data_;
  int *ndims_;
  int64_t **shapes_;
  const char **types_;
};

// Attributes are read once, when the operator is built; a missing one makes every call return kAttribute.
class Attrs {
 public:
  explicit Attrs(AotExtra *extra) : extra_(extra) {}
  int64_t Int(const char *name) { return Has(name) ? extra_->GetAttrInt(name) : 0; }
  float Float(const char *name) { return Has(name) ? extra_->GetAttrFloat(name) : 0; }
  std::vector<int64_t> Ints(const char *name, size_t n) {
    std::vector<int64_t> v;
    if (Has(name)) v = extra_->GetAttrIntVec(name);
    if (v.size() != n) ok = false;
    v.resize(n);
    return v;
  }
  Weight Matrix(const char *name) {
    Weight w;
    if (!w.Parse(Ints(name, 7))) ok = false;
    return w;
  }
  bool ok = true;

 private:
  bool Has(const char *name) { return extra_->HasAttr(name) ? true : (ok = false); }
  AotExtra *extra_;
};

// What an operator's Init stored; nullptr when it never ran.
template <class T>
const T *Data(void *extra) {
  return extra ? static_cast<const T *>(static_cast<AotExtra *>(extra)->KernelData()) : nullptr;
}

// A plain float vector in the arena; offset -1 means there is none.
inline bool VectorFits(int64_t offset, int64_t n, int64_t arena_bytes, bool optional = false) {
  if (optional && offset == -1) return true;
  return offset >= 0 && offset % 4 == 0 && n >= 0 && n <= kMaxDim && offset <= arena_bytes && n * 4 <= arena_bytes - offset;
}
inline const float *Vector(const uint8_t *arena, int64_t offset) {
  return offset < 0 ? nullptr : reinterpret_cast<const float *>(arena + offset);
}

// Cuts one scratch block into aligned pieces; with base == nullptr it only counts.
class Carver {
 public:
  explicit Carver(uint8_t *base) : base_(base) {}
  template <class T>
  T *Take(int64_t count) {
    T *p = base_ ? reinterpret_cast<T *>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return p;
  }
  size_t used() const { return used_; }

 private:
  uint8_t *base_;
  size_t used_ = 0;
};
// For shape inference, which sees inputs of any rank before the kernel can refuse them.
inline int64_t DimOf(const int *ndims, int64_t **shapes, int i, int d) { return d < ndims[i] ? shapes[i][d] : 0; }
inline std::vector<int64_t> Like(const int *ndims, int64_t **shapes, int i) {
  return ndims[i] > 0 ? std::vector<int64_t>(shapes[i], shapes[i] + ndims[i]) : std::vector<int64_t>{};
}
}  // namespace msms

#define MSMS_PARAMS int n, void **data, int *ndims, int64_t **shapes, const char **types, void *, void *extra
// The inference functions of an operator whose single output is float32 of the given shape.
#define MSMS_INFER(name, ...)                                                                                            \
  extern "C" std::vector<int64_t> name##InferShape(int *ndims, int64_t **shapes, AotExtra *extra) {                      \
    (void)ndims; (void)shapes; (void)extra;                                                                              \
    return __VA_ARGS__;                                                                                                  \
  }                                                                                                                      \
  extern "C" int name##InferType(std::vector<int>, AotExtra *) { return kFloat32; }
