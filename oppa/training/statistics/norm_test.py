"""Apply the norm test: is a batch large enough for its gradient to point like that of all data (Lau et al. 2025, section 3)?

The test passes if the variance of the mean gradient is at most eta^2 times its square: V / b <= eta^2 |g|^2. If not, the next batch should
have V / (eta^2 |g|^2) samples. V is the variance of one sample's gradient, summed over all parameters. It is computed from the squared
norms of groups of samples (`noise_scale.Norms`): single samples (eq. 3, `per_sample`), micro-batches, or workers.

    unbiased   V = (small - big) / (1 / b_small - 1 / b). For any groups, its expectation is that of eq. 3. If a group is a single sample,
               it is eq. 3 itself.
    paper      V = mean of |g_j - g|^2 = small - big over the J workers (eq. 5, DDP-Norm and FSDP-Norm). This is the variance of means
               over b / J samples each, about (J - 1) / b of the unbiased V. The batch thus counts twice: the batch that eq. 5 requires
               grows with the square root of that of eq. 3. Its expectation is never above (J - 1) / eta^2, whatever the gradients.

The two forms therefore need different values of eta. Under the unbiased form, a batch that just passes is (1 - eta^2) / eta^2 times the
noise scale tr(Sigma) / |G|^2, because |g|^2 includes the batch's noise. With eta = 0.58 this is COPUS's critical batch size, twice the
noise scale.

Notation (b samples in a batch, J groups of them):
    g, g_j         mean gradients of the batch, and of a group
    small, big     mean of |g_j|^2, and |g|^2
    T              the batch that the test requires, in samples
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from oppa.errors import InputError
from oppa.problem.training import Over
from oppa.training.statistics.noise_scale import Norms, estimate_of, informative

Form = Literal["unbiased", "paper"]
ETA: Mapping[Form, float] = {"unbiased": 0.58, "paper": 0.05}
"""Default eta of each form; the paper's experiments use 0.05 to 0.275."""
LARGEST = 2.0**53
"""Largest batch that the test returns, in samples."""


def variance_ratio(groups: Sequence[Norms], form: Form = "unbiased", *, sample_tokens: float = 1.0) -> float | None:
    """Return V / |g|^2 of one step, which the test compares with eta^2 b.

    Args:
        groups: Norms of each group of parameters; groups with one micro-batch are left out.
        form: Form of V.
        sample_tokens: Tokens of a sample, in the unit of the norms' sizes; used by the unbiased form only.

    Returns:
        The ratio; None if no group remains, |g|^2 is not positive or the ratio is not finite.
    """
    known = informative(groups)
    big = sum(norms.big for norms in known)
    if not big > 0:
        return None
    estimate = estimate_of(known)
    assert estimate is not None
    variance = sum(norms.small for norms in known) - big if form == "paper" else estimate.noise / sample_tokens
    return variance / big if math.isfinite(variance / big) else None


def required_batch(ratio: float, eta: float) -> int:
    """Return T, rounded up (eq. 3, or Algorithm 1 for the V of eq. 5); at least 1.

    Args:
        ratio: V / |g|^2 (`variance_ratio`).
        eta: Threshold of the test.

    Raises:
        InputError: if eta is not positive, or so small that no batch passes.
    """
    if not eta > 0 or not eta**2 * LARGEST > 1:
        raise InputError(
            f"`eta = {eta}` is not positive, or too small",
            hint=f"use a value such as {ETA['unbiased']}, the default; smaller ones need larger batches",
        )
    return max(1, math.ceil(min(ratio / eta**2, LARGEST)))


def groups_of(form: Form, workers: int) -> Over:
    """Return the groups to measure: workers for eq. 5 as written, if there are several; else micro-batches."""
    return "workers" if form == "paper" and workers > 1 else "micro-batches"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Divides a batch over workers; all have equal shares."""

    workers: int
    accumulation: int
    """Micro-batches that each worker runs in sequence."""
    micro_batch: int
    """Samples of a micro-batch."""

    @property
    def global_batch(self) -> int:
        """Return the samples of a step."""
        return self.workers * self.accumulation * self.micro_batch


def sized(wanted: int, *, workers: int, micro_batch: int, maximum: int, least: int = 1) -> Sizes:
    """Return sizes for at least `wanted` samples: the fewest micro-batches of equal size, each as small as possible.

    If that exceeds the maximum, the larger of two batches within it is returned. One has micro-batches of full size, as many as fit. The
    other has the same number of micro-batches as before, reduced in size.

    Args:
        wanted: Samples that the batch should have.
        workers: Number of workers.
        micro_batch: Largest micro-batch, in samples.
        maximum: Largest batch, in samples.
        least: Smallest number of micro-batches of each worker.

    Raises:
        InputError: if the maximum is below one sample for each micro-batch.
    """
    if maximum < workers * least:
        given = f"{workers} workers" + (f" with {least} micro-batches each" if least > 1 else "")
        raise InputError(f"`maximum = {maximum}` samples are too few for {given}", hint="give each at least one")
    fewest = max(least, math.ceil(min(wanted, maximum) / (workers * micro_batch)))
    sizes = Sizes(workers=workers, accumulation=fewest, micro_batch=math.ceil(wanted / (workers * fewest)))
    if sizes.global_batch <= maximum:
        return sizes
    whole = min(micro_batch, maximum // (workers * least))
    ways = ((maximum // (workers * whole), whole), (fewest, maximum // (workers * fewest)))
    accumulation, size = max(ways, key=lambda way: way[0] * way[1])
    return Sizes(workers=workers, accumulation=accumulation, micro_batch=size)


def sized_as_written(wanted: int, *, workers: int, accumulation: int) -> Sizes:
    """Return sizes by Algorithm 1: micro-batches grow and their number stays; there is no largest micro-batch or batch."""
    return Sizes(workers=workers, accumulation=accumulation, micro_batch=math.ceil(wanted / (workers * accumulation)))
