// Matrix products of float32 matrices, of any layout.
#pragma once
#include <cstdint>

namespace msms {
struct GemmKernels {
};
}  // namespace msms
