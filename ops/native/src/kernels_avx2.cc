#define MSMS_ISA msms_avx2
#include "kernels.inl"
MSMS_TABLE(kAvx2, "avx2")
