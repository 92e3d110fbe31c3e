// Norms, rotation, activations, embedding and dropout of training.
#include "args.h"
