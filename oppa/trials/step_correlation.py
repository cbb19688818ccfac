"""Compute the variance of a mean of steps, of which neighbours may be slow together, as when other jobs slow the host.

Notation (q steps):
    rho    correlation of neighbouring steps
    f      factor by which correlation increases the variance of the mean; that of steps i apart is rho^i (first-order autoregression):
           f = 1 + 2 sum over i < q of (1 - i / q) rho^i
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIGNIFICANT = 1.645
"""Standard deviations by which the correlation of neighbours is significant: independent steps exceed it in 5% of trials."""
LARGEST = 0.95
"""Largest correlation that is assumed."""
BLOCKS_SIGNIFICANT = 2.326
"""The same of the variance of blocks' means, of which there are several: 1% for each."""
LEAST_BLOCKS = 4
"""Least number of blocks of steps whose means are compared."""


def neighbour_correlation(values: Array) -> float:
    """Return the correlation of neighbouring steps, shape (q,); 0 unless it is significantly positive."""
    q, distance = len(values), values - values.mean()
    squares = float(distance @ distance)
    rho = float(distance[1:] @ distance[:-1]) / squares if squares else 0.0
    if rho <= SIGNIFICANT / math.sqrt(q):
        return 0.0
    return min(LARGEST, rho + (1 + 3 * rho) / q)  # the estimate of few steps is too low (Marriott and Pope 1954)


def variance_factor(rho: float, steps: int) -> float:
    """Return f, by which correlation of neighbours increases the variance of a mean of `steps` steps."""
    return (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**steps) / (steps * (1 - rho) ** 2)


def variance_of_mean(values: Array, *, least_correlation: float = 0.0) -> float:
    """Return the variance of the mean of all steps, shape (q,), q >= 2.

    It is the larger one of two. A first-order autoregression shows the correlation of few steps. In many steps, means of blocks of 2, 4, 8
    and so on also show one that lasts for long (Flyvbjerg and Petersen 1989). Only significant correlation counts.

    Args:
        least_correlation: Correlation of neighbouring steps that is known from other trials, as few steps do not show it.
    """
    q, squares = len(values), float(values.var()) * len(values)
    f = variance_factor(max(least_correlation, neighbour_correlation(values)), q)
    largest = squares / (q - f) * f / q  # the expectation of `squares` is q - f times the variance of a step
    independent, blocks = squares / (q - 1) / q, values
    while len(blocks) // 2 >= LEAST_BLOCKS:
        blocks = blocks[len(blocks) % 2 :].reshape(-1, 2).mean(1)
        found = float(blocks.var(ddof=1)) / len(blocks)
        if found > independent * (1 + BLOCKS_SIGNIFICANT * math.sqrt(2 / (len(blocks) - 1))):
            largest = max(largest, found)
    return largest
