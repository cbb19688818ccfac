"""Implement `oppa bench`. Benchmarks compare speeds as ratios, measured alternately in one run."""
