"""The norm test: is a batch so large that its gradient points where that of all data does (Lau et al. 2025, section 3)?

It is passed where the variance of the mean gradient is at most eta^2 of its square, V / b <= eta^2 |g|^2; else the next batch should have
V / (eta^2 |g|^2) samples. V, the variance of one sample's gradient, summed over all parameters, comes from the squared norms of groups
of samples (`noise_scale.Norms`): of single samples (eq. 3, `per_sample`), of micro-batches, or of workers.

    unbiased   V = (small - big) / (1 / b_small - 1 / b): whatever the groups are, it is that of eq. 3 in expectation, and that of eq. 3
               itself where a group is a sample
    paper      V = mean of |g_j - g|^2 = small - big over the J workers (eq. 5, DDP-Norm and FSDP-Norm). That is the variance of means over
               b / J samples each, so it is about (J - 1) / b of the other, and the batch counts twice: eq. 5 asks for one that grows
               with the square root of what eq. 3 asks for. In expectation it is never above (J - 1) / eta^2, whatever the gradients are

So one eta cannot serve both. Under the unbiased form a batch that just passes is (1 - eta^2) / eta^2 times the noise scale
tr(Sigma) / |G|^2, because |g|^2 has the batch's noise in it: eta = 0.58 is the critical batch size as COPUS has it, twice the noise scale.

Notation (b samples in a batch, J groups of them):
    g, g_j         mean gradients of the batch, and of a group
    small, big     mean of |g_j|^2, and |g|^2
    T              the batch that the test asks for, in samples
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from oppa.errors import InputError
from oppa.problem.training import Over
from oppa.training.noise_scale import Norms, estimate_of, telling

Form = Literal["unbiased", "paper"]
ETA: Mapping[Form, float] = {"unbiased": 0.58, "paper": 0.05}
"""Of each form its own; the paper's experiments have 0.05 to 0.275."""
LARGEST = 2.0**53
"""Samples that are asked for."""


def variance_ratio(groups: Sequence[Norms], form: Form = "unbiased", *, sample_tokens: float = 1.0) -> float | None:
    """V / |g|^2 of one step, by group of parameters: what the test compares with eta^2 b; None where a step does not tell.

    Args:
        sample_tokens: How many of the tokens that norms count in make up a sample.
    """
    known = telling(groups)
    big = sum(norms.big for norms in known)
    if not big > 0:
        return None
    estimate = estimate_of(known)
    assert estimate is not None
    variance = sum(norms.small for norms in known) - big if form == "paper" else estimate.noise / sample_tokens
    return variance / big if math.isfinite(variance / big) else None


def asked_for(ratio: float, eta: float) -> int:
    """T, rounded up (eq. 3, and Algorithm 1, for the V of eq. 5); at least 1.

    Args:
        ratio: V / |g|^2 (`variance_ratio`).

    Raises:
        InputError: for an eta that is not positive, or so small that nothing passes.
    """
    if not eta > 0 or not eta**2 * LARGEST > 1:
        raise InputError(f"`eta = {eta}` is not positive", hint=f"the default is {ETA['unbiased']}; smaller ones ask for larger batches")
    return max(1, math.ceil(min(ratio / eta**2, LARGEST)))


def groups_of(form: Form, workers: int) -> Over:
    """What to measure: micro-batches, but eq. 5 as written compares workers, where there are several."""
    return "workers" if form == "paper" and workers > 1 else "micro-batches"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How a batch is cut up over workers, all alike."""

    workers: int
    accumulation: int
    """Micro-batches that each worker runs, one after the other."""
    micro_batch: int
    """Samples of each."""

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.workers * self.accumulation * self.micro_batch


def sized(wanted: int, *, workers: int, micro_batch: int, maximum: int, least: int = 1) -> Sizes:
    """At least so many samples, in the fewest micro-batches of at most `micro_batch`, all alike, and no larger than they must be.

    Where that is beyond the maximum: as many micro-batches of as many samples as it has room for, or whole ones, whichever are more.

    Args:
        least: Micro-batches that each worker runs, at least.

    Raises:
        InputError: if the maximum has no sample for each of them.
    """
    if maximum < workers * least:
        given = f"{workers} workers" + (f" with {least} micro-batches each" if least > 1 else "")
        raise InputError(f"`maximum = {maximum}` samples for {given}", hint="give each at least one")
    fewest = max(least, math.ceil(min(wanted, maximum) / (workers * micro_batch)))
    sizes = Sizes(workers=workers, accumulation=fewest, micro_batch=math.ceil(wanted / (workers * fewest)))
    if sizes.global_batch <= maximum:
        return sizes
    whole = min(micro_batch, maximum // (workers * least))
    ways = ((maximum // (workers * whole), whole), (fewest, maximum // (workers * fewest)))
    accumulation, size = max(ways, key=lambda way: way[0] * way[1])
    return Sizes(workers=workers, accumulation=accumulation, micro_batch=size)


def sized_as_written(wanted: int, *, workers: int, accumulation: int) -> Sizes:
    """Algorithm 1: micro-batches grow, as many as there are; none is too large, and no batch is."""
    return Sizes(workers=workers, accumulation=accumulation, micro_batch=math.ceil(wanted / (workers * accumulation)))
