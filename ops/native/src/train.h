// Norms, rotation, activations and optimizers for training: forward and backward.
#pragma once
#include <cstdint>

namespace msms {
struct TrainKernels {
};
}  // namespace msms
