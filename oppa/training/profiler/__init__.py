"""Measure one rank: clocks, memory, and the times of passes."""
