// Part of kernels.inl.
const msms::TrainKernels kTrain = {};
