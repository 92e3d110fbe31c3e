// Optimizers over many tensors in place, the norm of many gradients, and accumulation. An operator takes its tensors
// as groups of N inputs (all parameters, then all first moments, ...), so N follows from the number of inputs.
#include <cmath>

#include "aside.h"
#include "train_args.h"

using namespace msms;

namespace {
struct Decayed : AotKernelData {
  std::vector<int64_t> decay;  // one a tensor: whether weight decay applies to it
  bool flag = false, ok = false;
};

void Start(AotExtra *extra, const char *flag, bool decays) {
  auto *d = new Decayed;
  Attrs attrs(extra);
  if (flag) d->flag = attrs.Int(flag) != 0;
  if (decays && extra->HasAttr("decay")) d->decay = extra->GetAttrIntVec("decay");
  d->ok = attrs.ok && (!decays || !d->decay.empty());
  extra->SetKernelData(d);
}

// `groups` groups of equal tensors, one a parameter, cut into pieces; every group has the shapes of the first.
class Tensors {
 public:
  int Check(const Args &a, int groups, int count) {
    count_ = count;
    starts_.reserve(static_cast<size_t>(count) + 1);
    starts_.assign(1, 0);
    for (int i = 0; i < count; ++i) {
      for (int g = 0; g < groups; ++g) {
        if (!a.Is(g * count + i, "float32")) return kType;
        if (!a.Same(g * count + i, i)) return kShape;
      }
      const int64_t size = Elements(a, i);
      if (size < 0) return kShape;
      starts_.push_back(starts_.back() + (size + kPiece - 1) / kPiece);
    }
    return kOk;
  }
  // Before the first `groups` of them are changed, with the pool locked: a copy that waits is made by `For`, piece by
  // piece while the cache holds it; what waits and is none of them is copied here.
  void KeepAside(Pool &pool, const Args &a, int groups) {
    Aside &aside = Aside::Get();
    if (!aside.waiting()) return;
    aside_.assign(static_cast<size_t>(groups * count_), nullptr);
    for (int i = 0; i < groups * count_; ++i) aside_[static_cast<size_t>(i)] = aside.Take(a.F(i), 4 * Elements(a, i));
    aside.Finish(pool);
  }
  int64_t pieces() const { return starts_.back(); }
  int64_t First(int i) const { return starts_[static_cast<size_t>(i)]; }
  // body(tensor, begin, n, piece) for every piece, on all threads. The pool must be locked.
  template <class Body>
  void For(Pool &pool, const Args &a, const Body &body) const {
    pool.For(pieces(), 1, [&](int64_t begin, int64_t end, int) {
      auto i = static_cast<int>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
      for (int64_t p = begin; p < end; ++p) {
        while (starts_[static_cast<size_t>(i) + 1] <= p) ++i;
        const int64_t at = (p - starts_[static_cast<size_t>(i)]) * kPiece, size = std::min(kPiece, Elements(a, i) - at);
        for (size_t t = static_cast<size_t>(i); t < aside_.size(); t += static_cast<size_t>(count_))
          if (aside_[t]) CopyPast(aside_[t] + 4 * at, a.Bytes(static_cast<int>(t)) + 4 * at, 4 * size);
        body(i, at, size, p);
      }
    });
    if (!aside_.empty()) Aside::Get().Done();
  }
  int count() const { return count_; }

 private:
  std::vector<int64_t> starts_;
  std::vector<uint8_t *> aside_;  // where to copy each changed tensor, or nullptr; empty where no copies wait
  int count_ = 0;
};

// The last two inputs of an optimizer: float64 [k] from the host and float32 [2] from the graph (gradient scale, skip).
struct Update {
  const double *host = nullptr;
  float scale = 1;
  bool skip = false;
  int Read(const Args &a, int at, int k) {
    if (!a.Is(at, "float64", 1) || !a.Is(at + 1, "float32", 1)) return kType;
    if (a.Dim(at, 0) != k || a.Dim(at + 1, 0) != 2) return kShape;
    host = reinterpret_cast<const double *>(a.Bytes(at));
    scale = a.F(at + 1)[0];
    skip = a.F(at + 1)[1] != 0;
    return kOk;
  }
};

// Number of tensors of an optimizer with `groups` inputs a tensor, two more inputs and one output; 0 for a wrong count.
int CountOf(int n, int groups) { return n >= groups + 3 && (n - 3) % groups == 0 ? (n - 3) / groups : 0; }

int Begin(const Args &a, int n, int groups, int k, const Decayed *d, bool decays, Tensors *tensors, Update *update) {
  const int count = CountOf(n, groups);
  if (!count || !a.Count(n)) return kCount;
  if (!d || !d->ok || (decays && d->decay.size() != static_cast<size_t>(count))) return kAttribute;
  if (const int code = tensors->Check(a, groups, count)) return code;
  return update->Read(a, groups * count, k);
}
// The output says whether the update was made.
int Finish(const Args &a, int n, bool done) {
  a.Out(n - 1)[0] = done ? 1.0f : 0.0f;
  return kOk;
}
}  // namespace

// (p.., m.., v.., g.., [lr, beta1, beta2, eps, weight_decay, step], [scale, skip]) -> [1]. Attribute `decoupled`: AdamW
// (Loshchilov and Hutter, 2019), else Adam (Kingma and Ba, 2015); numerically as PyTorch does it.
extern "C" int AdamWInit(int *, int64_t **, const char **, AotExtra *extra) { return Start(extra, "decoupled", true), 0; }
extern "C" int AdamW(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<Decayed>(extra);
  Tensors tensors;
  Update update;
  if (const int code = Begin(a, n, 4, 6, d, true, &tensors, &update)) return code;
  const double *host = update.host, lr = host[0], beta1 = host[1], beta2 = host[2], step = host[5];
  if (!(step >= 1)) return kAttribute;
  if (update.skip) return Finish(a, n, false);
  AdamStep steps[2];
  for (int decay = 0; decay < 2; ++decay) {
    AdamStep &k = steps[decay];
    const double weight = decay ? host[4] : 0;
    k.scale = update.scale;
    k.shrink = static_cast<float>(d->flag ? 1 - lr * weight : 1);
    k.decay = static_cast<float>(d->flag ? 0 : weight);
    k.beta1_rest = static_cast<float>(1 - beta1);
    k.beta2 = static_cast<float>(beta2);
    k.beta2_rest = static_cast<float>(1 - beta2);
    k.step_size = static_cast<float>(lr / (1 - std::pow(beta1, step)));
    k.root = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)));
    k.eps = static_cast<float>(host[3]);
  }
  const int count = tensors.count();
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  tensors.KeepAside(pool, a, 3);
  tensors.For(pool, a, [&](int i, int64_t at, int64_t size, int64_t) {
    Active().train->adamw(a.Out(i) + at, a.Out(count + i) + at, a.Out(2 * count + i) + at, a.F(3 * count + i) + at, size,
                          steps[d->decay[static_cast<size_t>(i)] != 0]);
  });
  return Finish(a, n, true);
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(AdamW, {1})

// (p.., m.., g.., [lr, beta1, beta2, weight_decay], [scale, skip]) -> [1]: Chen et al., 2023, algorithm 2.
extern "C" int LionInit(int *, int64_t **, const char **, AotExtra *extra) { return Start(extra, nullptr, true), 0; }
extern "C" int Lion(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<Decayed>(extra);
  Tensors tensors;
  Update update;
  if (const int code = Begin(a, n, 3, 4, d, true, &tensors, &update)) return code;
  if (update.skip) return Finish(a, n, false);
  const double *host = update.host;
  LionStep steps[2];
  for (int decay = 0; decay < 2; ++decay)
    steps[decay] = {update.scale, static_cast<float>(decay ? 1 - host[0] * host[3] : 1), static_cast<float>(host[0]),
                    static_cast<float>(host[1]), static_cast<float>(1 - host[1]), static_cast<float>(host[2]),
                    static_cast<float>(1 - host[2])};
  const int count = tensors.count();
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  tensors.KeepAside(pool, a, 2);
  tensors.For(pool, a, [&](int i, int64_t at, int64_t size, int64_t) {
    Active().train->lion(a.Out(i) + at, a.Out(count + i) + at, a.F(2 * count + i) + at, size,
                         steps[d->decay[static_cast<size_t>(i)] != 0]);
  });
  return Finish(a, n, true);
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(Lion, {1})

namespace {
int SgdOver(const Args &a, int n, const Decayed *d, bool buffers, const char *name = __builtin_FUNCTION()) try {
  const int groups = buffers ? 3 : 2;
  Tensors tensors;
  Update update;
  if (const int code = Begin(a, n, groups, 5, d, true, &tensors, &update)) return code;
  const double *host = update.host;
  if (!(host[4] >= 1)) return kAttribute;
  if (update.skip) return Finish(a, n, false);
  SgdStep steps[2];
  for (int decay = 0; decay < 2; ++decay)
    steps[decay] = {update.scale, static_cast<float>(decay ? host[3] : 0), static_cast<float>(host[0]),
                    static_cast<float>(host[1]), static_cast<float>(1 - host[2]), host[4] == 1, d->flag};
  const int count = tensors.count();
  Pool &pool = Pool::Get();
  auto lock = pool.Lock(name);
  tensors.KeepAside(pool, a, groups - 1);
  tensors.For(pool, a, [&](int i, int64_t at, int64_t size, int64_t) {
    Active().train->sgd(a.Out(i) + at, buffers ? a.Out(count + i) + at : nullptr, a.F((groups - 1) * count + i) + at, size,
                        steps[d->decay[static_cast<size_t>(i)] != 0]);
  });
  return Finish(a, n, true);
} catch (const std::bad_alloc &) {
  return kMemory;
}
}  // namespace

// (p.., g.., [lr, momentum, dampening, weight_decay, step], [scale, skip]) -> [1]. Without momentum.
extern "C" int SgdInit(int *, int64_t **, const char **, AotExtra *extra) { return Start(extra, nullptr, true), 0; }
extern "C" int Sgd(MSMS_PARAMS) { return SgdOver(Args(n, data, ndims, shapes, types), n, Data<Decayed>(extra), false); }
MSMS_INFER(Sgd, {1})

// (p.., buffers.., g.., as above) -> [1]. The first step fills the buffers; attribute `nesterov`.
extern "C" int SgdMomentumInit(int *, int64_t **, const char **, AotExtra *extra) { return Start(extra, "nesterov", true), 0; }
extern "C" int SgdMomentum(MSMS_PARAMS) { return SgdOver(Args(n, data, ndims, shapes, types), n, Data<Decayed>(extra), true); }
MSMS_INFER(SgdMomentum, {1})

// (g..) -> [N]: the sum of squares of each, in double over fixed pieces; not finite where a gradient is not.
extern "C" int SumSquaresInit(int *, int64_t **, const char **, AotExtra *extra) {
  auto *d = new Decayed;
  Attrs attrs(extra);
  d->decay.assign(1, attrs.Int("count"));
  d->ok = attrs.ok;
  extra->SetKernelData(d);
  return 0;
}
extern "C" int SumSquares(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<Decayed>(extra);
  if (n < 2 || !a.Count(n)) return kCount;
  if (!d || !d->ok || d->decay[0] != n - 1) return kAttribute;
  Tensors tensors;
  if (const int code = tensors.Check(a, 1, n - 1)) return code;
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  auto *partial = reinterpret_cast<double *>(pool.Scratch(static_cast<size_t>(tensors.pieces() + 1) * sizeof(double)));
  tensors.For(pool, a, [&](int i, int64_t at, int64_t size, int64_t piece) {
    partial[piece] = Active().train->sum_squares(a.F(i) + at, size);
  });
  for (int i = 0; i < n - 1; ++i) {
    double sum = 0;
    for (int64_t p = tensors.First(i); p < tensors.First(i + 1); ++p) sum += partial[p];
    a.Out(n - 1)[i] = static_cast<float>(sum);
  }
  return kOk;
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(SumSquares, {extra->GetAttrInt("count")})

// (sums.., g.., keep [1]) -> [1]: sum = keep * sum + g in place; keep = 0 begins anew, whatever was there.
extern "C" int AccumulateInit(int *, int64_t **, const char **, AotExtra *) { return 0; }
extern "C" int Accumulate(MSMS_PARAMS) try {
  (void)extra;
  const Args a(n, data, ndims, shapes, types);
  if (n < 4 || n % 2 || !a.Count(n)) return kCount;
  const int count = (n - 2) / 2;
  Tensors tensors;
  if (const int code = tensors.Check(a, 2, count)) return code;
  if (!a.Is(2 * count, "float32", 1)) return kType;
  if (a.Dim(2 * count, 0) != 1) return kShape;
  const float keep = a.F(2 * count)[0];
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  tensors.For(pool, a, [&](int i, int64_t at, int64_t size, int64_t) {
    Active().train->accumulate(a.Out(i) + at, a.F(count + i) + at, size, keep);
  });
  return Finish(a, n, true);
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(Accumulate, {1})

#include "train_adafactor.inl"
