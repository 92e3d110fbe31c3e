"""One page of HTML about a training run, or about two beside each other, made of what the runs have written."""
