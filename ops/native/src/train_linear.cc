// Linear layers of training: y = x w^T + b and its gradients.
#include "args.h"
