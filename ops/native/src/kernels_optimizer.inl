// Optimizers, one piece of a tensor at a time. Part of kernels_train.inl.
void AdamW(float *p, float *m, float *v, const float *g, int64_t size, const msms::AdamStep &k) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V old = Get(p + i, n), kept = old * All(k.shrink);
    const V grad = Get(g + i, n) * All(k.scale) + old * All(k.decay);
    const V mean = Get(m + i, n), first = Fma(grad - mean, All(k.beta1_rest), mean);
    const V second = Fma(grad * All(k.beta2_rest), grad, Get(v + i, n) * All(k.beta2));
    Put(m + i, first, n);
    Put(v + i, second, n);
    Put(p + i, kept - All(k.step_size) * first / Fma(Sqrt(second), All(k.root), All(k.eps)), n);
  });
}

void Lion(float *p, float *m, const float *g, int64_t size, const msms::LionStep &k) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V grad = Get(g + i, n) * All(k.scale), mean = Get(m + i, n), zero = {};
    const V mixed = Fma(grad, All(k.beta1_rest), mean * All(k.beta1));
    const V lr = All(k.lr), up = (V)((VI)lr & (mixed > zero)), down = (V)((VI)lr & (mixed < zero));
    Put(m + i, Fma(grad, All(k.beta2_rest), mean * All(k.beta2)), n);
    // a NaN has no sign: it must not pass for a zero
    Put(p + i, Get(p + i, n) * All(k.shrink) - (up - down) + (mixed - mixed), n);
  });
}

void Sgd(float *p, float *buffer, const float *g, int64_t size, const msms::SgdStep &k) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V old = Get(p + i, n);
    V grad = Fma(old, All(k.decay), Get(g + i, n) * All(k.scale));
    if (buffer) {
      const V kept = k.first ? grad : Fma(grad, All(k.damped), Get(buffer + i, n) * All(k.momentum));
      Put(buffer + i, kept, n);
      grad = k.nesterov ? Fma(kept, All(k.momentum), grad) : kept;
    }
    Put(p + i, Fma(grad, All(-k.lr), old), n);
  });
}

double SumSquares(const float *x, int64_t size) {
  Squares sum;
  ForSums(size, [&](int64_t i, auto n, auto slot) { sum.Add(Get(x + i, n), slot); });
  return sum.Total();
}

void Accumulate(float *sum, const float *g, int64_t size, float keep) {
  if (keep == 0) {  // whatever was there, NaN included, is gone
    std::memcpy(sum, g, static_cast<size_t>(size) * 4);
    return;
  }
  ForVectors(size, [&](int64_t i, auto n) { Put(sum + i, Fma(Get(sum + i, n), All(keep), Get(g + i, n)), n); });
}

void AddSquares(const float *g, float scale, int64_t size, float *sum) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V v = Get(g + i, n) * All(scale);
    AddTo(sum + i, v * v, n);
  });
}

void LerpSquare(float *v, const float *g, float scale, float weight, int64_t size) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V grad = Get(g + i, n) * All(scale), old = Get(v + i, n);
    Put(v + i, Fma(grad * grad - old, All(weight), old), n);
  });
}

// NaN in the estimate must not turn into the floor: Max gives its second operand then.
inline V AdafactorUpdate(V g, V col, const msms::AdafactorRow &k) {
  return g * All(k.scale) * (All(1.0f) / Sqrt(Max(All(k.floor), All(k.row) * col)));
}
double AdafactorNorm(const float *g, const float *col, int64_t size, const msms::AdafactorRow &k) {
  Squares sum;
  ForSums(size, [&](int64_t i, auto n, auto slot) { sum.Add(AdafactorUpdate(Get(g + i, n), Get(col + i, n), k), slot); });
  return sum.Total();
}
void Adafactor(float *p, const float *g, const float *col, int64_t size, const msms::AdafactorRow &k) {
  ForVectors(size, [&](int64_t i, auto n) {
    const V update = AdafactorUpdate(Get(g + i, n), Get(col + i, n), k);
    Put(p + i, Fma(update, All(-k.step_size), Get(p + i, n) * All(k.shrink)), n);
  });
}
