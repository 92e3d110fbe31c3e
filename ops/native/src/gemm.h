// Matrix products of float32 matrices, of any layout, after Goto and van de Geijn (2008): B is packed into panels that
// the threads share, each thread packs the rows of A it works on, and a small kernel keeps a tile of C in registers.
// An element of C is one fixed sequence of operations, given by k alone: not by m, n, the threads or their order.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace msms {
// C [m, n] = op(A) [m, k] op(B) [k, n] + bias [n], or added to C.
struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const float *a = nullptr;
  int64_t lda = 0;
  bool a_transposed = false;  // stored as [k, m]
  const float *b = nullptr;
  int64_t ldb = 0;
  bool b_transposed = false;  // stored as [n, k]
  float *c = nullptr;
  int64_t ldc = 0;
  bool add = false;
  const float *bias = nullptr;
};

// One step of a product: rows, columns and inner indices from .. to.
struct GemmBlock {
  int64_t i0, i1, j0, j1, k0, k1;
};

struct GemmKernels {
  int64_t mr, nr;  // rows and columns of the tile in registers
  // B of the block as [column / nr][k1 - k0][nr].
  void (*pack)(const GemmArgs &g, const GemmBlock &block, float *panels);
  // C of the block, added to what earlier inner indices left there. `rows`: kGemmRows * kGemmDepth floats of scratch.
  void (*block)(const GemmArgs &g, const GemmBlock &block, const float *panels, float *rows);
  // -log softmax(logits)[label]; with `gradient` the logits become its gradient, softmax(logits) less 1 at the label.
  double (*cross_entropy)(float *logits, int64_t n, int64_t label, bool gradient);
};

constexpr int64_t kGemmDepth = 320;         // most inner indices of a step
constexpr int64_t kGemmRows = 112;          // most rows of a block
constexpr int64_t kGemmStrip = 180 << 10;   // most floats of B in a step: they stay in a core's cache of 1 MiB

// How a product is cut: into strips of columns and equal pieces of the inner dimension.
struct GemmPlan {
  int64_t depth, strip;
  explicit GemmPlan(const GemmArgs &g) {
    const int64_t cuts = (g.k + kGemmDepth - 1) / kGemmDepth, nr = Active().gemm->nr;
    depth = cuts <= 1 ? std::max<int64_t>(1, g.k) : ((g.k + cuts - 1) / cuts + 7) / 8 * 8;
    const int64_t panels = (std::max<int64_t>(1, g.n) + nr - 1) / nr, most = std::max<int64_t>(1, kGemmStrip / (depth * nr));
    const int64_t strips = (panels + most - 1) / most;
    strip = (panels + strips - 1) / strips * nr;
  }
};

// Floats of scratch that a product needs.
inline int64_t GemmScratch(const GemmArgs &g, int64_t threads) {
  const GemmPlan plan(g);
  return 2 * plan.depth * plan.strip + threads * kGemmRows * kGemmDepth;
}

// Where the blocks of rows begin: large ones first, small ones last, so that no thread waits long for another.
inline std::vector<int64_t> GemmRowCuts(int64_t m, int64_t threads) {
  const int64_t mr = Active().gemm->mr;
  std::vector<int64_t> cuts = {0};
  while (cuts.back() < m) {
    const int64_t tiles = (m - cuts.back() + mr - 1) / mr, fair = threads == 1 ? tiles : tiles / (3 * threads);
    cuts.push_back(std::min(m, cuts.back() + mr * std::max<int64_t>(1, std::min(kGemmRows / mr, fair))));
  }
  return cuts;
}

// The caller holds the pool's lock; `scratch` has room for GemmScratch floats. May throw bad_alloc.
inline void Gemm(Pool &pool, const GemmArgs &g, float *scratch) {
  if (g.m <= 0 || g.n <= 0) return;
  const GemmKernels &kernels = *Active().gemm;
  const GemmPlan plan(g);
  const int64_t threads = pool.threads(), k = std::max<int64_t>(0, g.k);
  const int64_t depths = std::max<int64_t>(1, (k + plan.depth - 1) / plan.depth), steps = (g.n + plan.strip - 1) / plan.strip * depths;
  float *buffers[2] = {scratch, scratch + plan.depth * plan.strip}, *rows = scratch + 2 * plan.depth * plan.strip;
  const auto step_of = [&](int64_t step) {
    const int64_t j = step / depths * plan.strip, at = step % depths * plan.depth;
    return GemmBlock{0, g.m, j, std::min(g.n, j + plan.strip), at, std::min(k, at + plan.depth)};
  };
  const int64_t piece = kernels.nr;
  const auto pack = [&](int64_t step, int64_t i) {
    GemmBlock part = step_of(step);
    const int64_t first = part.j0 + i * piece;
    float *panels = buffers[step % 2] + (first - part.j0) * (part.k1 - part.k0);
    part.j1 = std::min(part.j1, first + piece);
    part.j0 = first;
    kernels.pack(g, part, panels);
  };
  const auto packs = [&](int64_t step) {
    if (step >= steps) return int64_t{0};
    const GemmBlock all = step_of(step);
    return (all.j1 - all.j0 + piece - 1) / piece;
  };
  const std::vector<int64_t> cuts = GemmRowCuts(g.m, threads);
  const int64_t blocks = static_cast<int64_t>(cuts.size()) - 1;
  pool.For(packs(0), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) pack(0, i);
  });
  // The next step's B is packed by whoever finds no block left in this one.
  for (int64_t step = 0; step < steps; ++step)
    pool.For(blocks + packs(step + 1), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        if (i >= blocks) {
          pack(step + 1, i - blocks);
          continue;
        }
        GemmBlock block = step_of(step);
        block.i0 = cuts[i];
        block.i1 = cuts[i + 1];
        kernels.block(g, block, buffers[step % 2], rows + thread * kGemmRows * kGemmDepth);
      }
    });
}
}  // namespace msms
