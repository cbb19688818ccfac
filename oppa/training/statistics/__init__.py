"""Measure what a run learns: gradient statistics, noise scale, norm test, losses, accuracy, and worker metrics."""
