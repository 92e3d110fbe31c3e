// Norms, rotation, activations and optimizers for training: forward and backward.
#pragma once
#include <cstdint>

namespace msms {
// The step of each optimizer in the numbers its loop uses, formed in double by the caller. Gradients are multiplied
// by `scale` first. What is written as 1 - beta is its own number: 1 - 0.999f would be off by 1e-5.
struct AdamStep {
  float scale, shrink, decay, beta1_rest, beta2, beta2_rest, step_size, root, eps;  // shrink 1 - lr wd; decay: wd of plain Adam
};
struct LionStep {
  float scale, shrink, lr, beta1, beta1_rest, beta2, beta2_rest;
};
struct SgdStep {
  float scale, decay, lr, momentum, damped;  // damped 1 - dampening
  bool first, nesterov;
};
// One row of a factored second moment: the estimate of element i is row * col[i].
struct AdafactorRow {
  float scale, shrink, row, floor, step_size;
};

struct TrainKernels {
  // Gradients of one row; dw and db [h] are added to.
  void (*rms_norm_grad)(const float *dy, const float *x, const float *w, float eps, int64_t h, float *dx, float *dw);
  void (*layer_norm)(const float *x, const float *w, const float *b, float eps, int64_t h, float *y);  // b may be null
  void (*layer_norm_grad)(const float *dy, const float *x, const float *w, float eps, int64_t h, float *dx, float *dw, float *db);
  void (*rope_grad)(const float *dy, const float *table, int64_t dim, float *dx);
  void (*swiglu_grad)(const float *dy, const float *gate, const float *up, float *dgate, float *dup, int64_t n);
  void (*gelu)(const float *x, float *y, int64_t n, bool tanh);
  void (*gelu_grad)(const float *dy, const float *x, float *dx, int64_t n, bool tanh);
  // Element i of x is element first + i of the tensor.
  void (*dropout)(const float *x, const int32_t *seed, int64_t first, int64_t n, int32_t threshold, float scale, float *y);
  void (*add_rows)(const float *rows, const int32_t *order, int64_t count, int64_t h, float *sum, float *spare);  // sum of rows[order[i]]
  void (*adamw)(float *p, float *m, float *v, const float *g, int64_t n, const AdamStep &step);
  void (*lion)(float *p, float *m, const float *g, int64_t n, const LionStep &step);
  void (*sgd)(float *p, float *buffer, const float *g, int64_t n, const SgdStep &step);  // buffer may be null
  double (*sum_squares)(const float *x, int64_t n);
  void (*accumulate)(float *sum, const float *g, int64_t n, float keep);
  void (*add_squares)(const float *g, float scale, int64_t n, float *sum);  // sum[i] += (scale g[i])^2
  void (*lerp_square)(float *v, const float *g, float scale, float weight, int64_t n);  // v += weight ((scale g)^2 - v)
  double (*adafactor_norm)(const float *g, const float *col, int64_t n, const AdafactorRow &k);
  void (*adafactor)(float *p, const float *g, const float *col, int64_t n, const AdafactorRow &k);
};
}  // namespace msms
