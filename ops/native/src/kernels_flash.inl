// Part of kernels.inl.
const msms::FlashKernels kFlash = {};
