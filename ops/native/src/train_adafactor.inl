// Adafactor (Shazeer and Stern, 2018) as torch.optim.Adafactor does it. Part of train_optimizer.cc.
namespace {
struct AdafactorHost {
  double lr, beta2_decay, eps1, eps2, d, weight_decay, step;
};

// Rows of a tensor summed into doubles: one sum a chunk, added in order.
template <class Body>
double SumOfChunks(Pool &pool, int64_t chunks, double *partial, const Body &body) {
  pool.For(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c) partial[c] = body(c);
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c];
  return sum;
}

// One tensor as `rows` rows of `width`. A matrix is factored (row [rows], col [width]); a vector, cut into rows of
// kPiece, keeps its whole second moment in `row`, and col is not read.
struct AdafactorTensor {
  float *p;
  const float *g;
  float *row, *col;
  int64_t size, rows, width;
  bool factored;
};

size_t AdafactorScratch(const AdafactorTensor &t, int64_t chunks) {
  return static_cast<size_t>(chunks) * 8 + 64 + (t.factored ? static_cast<size_t>(chunks * t.width) * 4 : 0);
}
int64_t ChunkRows(const AdafactorTensor &t) {
  return t.factored ? std::max((t.rows + 63) / 64, std::max<int64_t>(1, kPiece / t.width)) : 1;
}

void AdafactorOne(Pool &pool, const AdafactorTensor &t, const AdafactorHost &host, double rest, float scale, bool decay, uint8_t *scratch) {
  const TrainKernels &train = *Active().train;
  const int64_t chunk = ChunkRows(t), chunks = (t.rows + chunk - 1) / chunk;
  Carver carver(scratch);
  double *partial = carver.Take<double>(chunks);
  const auto weight = static_cast<float>(rest);
  const auto elements = [&](int64_t c) { return std::min(t.size, (c + 1) * chunk * t.width) - c * chunk * t.width; };
  const double norm = SumOfChunks(pool, chunks, partial, [&](int64_t c) { return train.sum_squares(t.p + c * chunk * t.width, elements(c)); });
  const double alpha = std::max(host.eps2, std::sqrt(norm / static_cast<double>(t.size))) * std::min(host.lr, 1 / std::sqrt(host.step));
  double mean = 1;
  if (t.factored) {
    float *sums = carver.Take<float>(chunks * t.width);
    pool.For(chunks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t c = begin; c < end; ++c) {
        std::memset(sums + c * t.width, 0, static_cast<size_t>(t.width) * 4);
        for (int64_t r = c * chunk; r < std::min(t.rows, (c + 1) * chunk); ++r) {
          const float *g = t.g + r * t.width;
          train.add_squares(g, scale, t.width, sums + c * t.width);
          const double squares = train.sum_squares(g, t.width) * scale * scale / static_cast<double>(t.width);
          t.row[r] += weight * (static_cast<float>(squares) - t.row[r]);
        }
      }
    });
    for (int64_t i = 0; i < t.width; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < chunks; ++c) sum += sums[c * t.width + i];
      t.col[i] += weight * (static_cast<float>(sum / static_cast<double>(t.rows)) - t.col[i]);
    }
    mean = 0;
    for (int64_t r = 0; r < t.rows; ++r) mean += t.row[r];
    mean = std::max(mean / static_cast<double>(t.rows), host.eps1);
  } else {
    pool.For(chunks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t c = begin; c < end; ++c) train.lerp_square(t.row + c * t.width, t.g + c * t.width, scale, weight, elements(c));
    });
  }
  AdafactorRow k{scale, static_cast<float>(decay ? 1 - host.lr * host.weight_decay : 1), 1.0f, static_cast<float>(host.eps1 * host.eps1), 0.0f};
  const auto each = [&](int64_t c, const auto &body) {
    for (int64_t r = c * chunk; r < std::min(t.rows, (c + 1) * chunk); ++r) {
      AdafactorRow own = k;
      if (t.factored) own.row = static_cast<float>(t.row[r] / mean);
      body(r * t.width, std::min(t.width, t.size - r * t.width), t.factored ? t.col : t.row + r * t.width, own);
    }
  };
  const double update = SumOfChunks(pool, chunks, partial, [&](int64_t c) {
    double sum = 0;
    each(c, [&](int64_t at, int64_t n, const float *col, const AdafactorRow &own) { sum += train.adafactor_norm(t.g + at, col, n, own); });
    return sum;
  });
  const double denominator = std::max(1.0, std::sqrt(update / static_cast<double>(t.size)) / host.d);
  k.step_size = static_cast<float>(alpha / denominator);
  pool.For(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c)
      each(c, [&](int64_t at, int64_t n, const float *col, const AdafactorRow &own) { train.adafactor(t.p + at, t.g + at, col, n, own); });
  });
}
}  // namespace

// (p.., row.., col.., g.., [lr, beta2_decay, eps1, eps2, d, weight_decay, step], [scale, skip]) -> [1]. Of a matrix
// [R, C]: row [R], col [C]; of a vector [C]: row [C] is its whole second moment, col [1] is not used.
extern "C" int AdafactorInit(int *, int64_t **, const char **, AotExtra *extra) { return Start(extra, nullptr, true), 0; }
extern "C" int Adafactor(MSMS_PARAMS) try {
  const Args a(n, data, ndims, shapes, types);
  const auto *d = Data<Decayed>(extra);
  const int count = CountOf(n, 4);
  if (!count || !a.Count(n)) return kCount;
  if (!d || !d->ok || d->decay.size() != static_cast<size_t>(count)) return kAttribute;
  std::vector<AdafactorTensor> list;
  size_t bytes = 64;
  for (int i = 0; i < count; ++i) {
    const int row = count + i, col = 2 * count + i, g = 3 * count + i, rank = a.Rank(i);
    if (!a.Is(i, "float32") || !a.Is(g, "float32") || !a.Is(row, "float32", 1) || !a.Is(col, "float32", 1)) return kType;
    if (rank < 1 || rank > 2 || !a.Same(i, g)) return kShape;
    const int64_t size = Elements(a, i), last = a.Dim(i, rank - 1);
    if (size < 1) return kShape;
    const bool factored = rank == 2;
    if (a.Dim(row, 0) != a.Dim(i, 0) || a.Dim(col, 0) != (factored ? last : 1)) return kShape;
    list.push_back({a.Out(i), a.F(g), a.Out(row), a.Out(col), size, factored ? a.Dim(i, 0) : (size + kPiece - 1) / kPiece,
                    factored ? last : kPiece, factored});
    const int64_t chunk = ChunkRows(list.back());
    bytes = std::max(bytes, AdafactorScratch(list.back(), (list.back().rows + chunk - 1) / chunk));
  }
  Update update;
  if (const int code = update.Read(a, 4 * count, 7)) return code;
  const double *h = update.host;
  const AdafactorHost host{h[0], h[1], h[2], h[3], h[4], h[5], h[6]};
  if (!(host.step >= 1)) return kAttribute;
  if (update.skip) return Finish(a, n, false);
  const double rest = std::pow(host.step, host.beta2_decay);
  Pool &pool = Pool::Get();
  auto lock = pool.Lock();
  Aside::Get().Now(pool);  // its passes read a tensor several times: no one of them could copy it on the way
  uint8_t *scratch = pool.Scratch(bytes);
  for (int i = 0; i < count; ++i)
    AdafactorOne(pool, list[static_cast<size_t>(i)], host, rest, update.scale, d->decay[static_cast<size_t>(i)] != 0, scratch);
  return Finish(a, n, true);
} catch (const std::bad_alloc &) {
  return kMemory;
}
MSMS_INFER(Adafactor, {1})
