// Attention for training: forward and backward without a matrix of all scores.
#pragma once
#include <cstdint>

namespace msms {
struct FlashKernels {
};
}  // namespace msms
