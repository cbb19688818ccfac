"""Compute goodput: how fast the loss falls per second.

Notation (COPUS sections 3.1 and 3.2; n configurations, m noise scales):
    T      samples_per_s, sequences per second                      (n,)
    B      global_batch, sequences per optimizer step               (n,)
    phi    noise_scale, the gradient noise scale in sequences       (m,)

Eq. 8 credits a larger batch with its learning rate, sqrt(B), however little noise there is. On a plateau the gradient is almost the same
in every sequence. There eq. 8 favours large batches that learn nothing more. McCandlish et al. (2018, appendix E) find that the best rate
of Adam saturates as (1 + phi / B) ** -a with a from 0.5 to 1. So by default a rate counts for the square root of what its batch is worth,
not of its size. That is sqrt(B SE(B)), which is sqrt(B) while B is far below phi.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppa.problem.training import Scaling


def statistical_efficiency(global_batch: ArrayLike, noise_scale: ArrayLike) -> NDArray[np.float64]:
    """Return the progress per sequence in a batch of B, relative to a batch of one: (1 + phi) / (B + phi) (COPUS eq. 6)."""
    batch, noise = np.asarray(global_batch, np.float64), np.asarray(noise_scale, np.float64)
    return np.asarray((1 + noise) / (batch + noise))


def learning_rate_factor(global_batch: ArrayLike, scaling: Scaling = "sqrt") -> NDArray[np.float64]:
    """Return eta(B) / eta(1) as it enters COPUS's objective: sqrt(B) if the rate follows the square root of the batch (eq. 8), else 1.

    A linear factor with saturating throughput would always favour the largest batch. For SGD, AdaScale acts on the learning rate instead
    (COPUS section 3.2). A constant rate gains nothing.
    """
    batch = np.asarray(global_batch, np.float64)
    return np.sqrt(batch) if scaling == "sqrt" else np.ones_like(batch)


def saturating_factor(global_batch: ArrayLike, noise_scale: ArrayLike, scaling: Scaling = "sqrt") -> NDArray[np.float64]:
    """Return the learning-rate factor, which saturates where the batch exceeds the noise scale; arguments broadcast.

    It is sqrt(B SE(B)) if the rate follows the square root of the batch, else 1.
    """
    factor = learning_rate_factor(global_batch, scaling)
    return factor * np.sqrt(statistical_efficiency(global_batch, noise_scale)) if scaling == "sqrt" else factor


def plain_goodput(samples_per_s: ArrayLike, global_batch: ArrayLike, noise_scale: ArrayLike) -> NDArray[np.float64]:
    """Return T x SE(B), as Pollux defines it (COPUS eq. 5); the arguments broadcast."""
    return np.asarray(samples_per_s, np.float64) * statistical_efficiency(global_batch, noise_scale)


def goodput(
    samples_per_s: ArrayLike,
    global_batch: ArrayLike,
    noise_scale: ArrayLike,
    *,
    scaling: Scaling = "sqrt",
    saturating: bool = True,
    reference_batch: float = 1.0,
) -> NDArray[np.float64]:
    """Return T x SE(B) x eta(B) / eta(B_ref) (COPUS eq. 7); the arguments broadcast.

    Args:
        saturating: If true, the learning rate counts only while there is noise; else always (COPUS eq. 8).
        reference_batch: B_ref, where the factor is 1. It is common to all rows, so that no choice depends on it.
    """
    own, reference = (
        saturating_factor(batch, noise_scale, scaling) if saturating else learning_rate_factor(batch, scaling)
        for batch in (global_batch, reference_batch)
    )
    return plain_goodput(samples_per_s, global_batch, noise_scale) * own / reference
