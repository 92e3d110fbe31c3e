#define MSMS_ISA msms_avx512
#include "kernels.inl"
MSMS_TABLE(kAvx512, "avx512")
