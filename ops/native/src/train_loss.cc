// Linear layer and cross entropy in one, a piece of the vocabulary at a time.
#include "args.h"
