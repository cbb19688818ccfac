"""The cost model predicts the time and the memory of a training step from first principles, before any trial."""
