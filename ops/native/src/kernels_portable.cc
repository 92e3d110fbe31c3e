#define MSMS_ISA msms_portable
#include "kernels.inl"
MSMS_TABLE(kPortable, "portable")
