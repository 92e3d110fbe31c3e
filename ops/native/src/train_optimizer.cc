// Optimizers over many tensors, their norm, and accumulation.
#include "args.h"
