"""A training run: the step, what it is made of, and the life of a run around it."""
