"""Define the problem: a model, a batch and a cluster, and the search space of configurations that could run it."""
