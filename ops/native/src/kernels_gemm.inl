// Part of kernels.inl.
const msms::GemmKernels kGemm = {};
