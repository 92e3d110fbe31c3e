// Attention of training.
#include "args.h"
