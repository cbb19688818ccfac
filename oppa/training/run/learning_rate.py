"""Compute the learning rate of a step from its global batch and the samples seen, never from the number of steps taken."""

import dataclasses
import math

from oppa.errors import require_known
from oppa.problem.training import RunOptions

SCALINGS = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}
"""Exponent of each rule; the learning rate is multiplied by (global batch / reference batch) to this power."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Records the batch that the learning rate followed at the last change of the batch size."""

    batch: float
    """Batch in samples."""
    since: int
    """Samples seen up to the change."""

    def reached(self, global_batch: int, seen: int, damping: int) -> float:
        """Return the batch that the learning rate follows now, in samples.

        It follows a smaller batch at once, but a larger one linearly over `damping` such batches.
        """
        share = min(1.0, (seen - self.since) / (damping * global_batch)) if damping else 1.0
        return min(float(global_batch), self.batch + (global_batch - self.batch) * share)


def learning_rate(
    options: RunOptions, *, base: float, reference_batch: int, batch: range, total: int | None, followed: Followed | None = None
) -> float:
    """Return the learning rate of the step over the samples `batch`.

    A change of the batch size from B to B' multiplies it by sqrt(B' / B) (COPUS eq. 9, rule `sqrt`). The path does not matter, because
    the rate is base * sqrt(B / reference). The increase is gradual.

    Args:
        options: Warm-up, decay, scaling rule and damping.
        base: Learning rate at the reference batch, after the warm-up and before the decay.
        reference_batch: Global batch for which `base` was chosen, in samples.
        batch: Sample numbers of the step, counted from the start of the run.
        total: Samples of the whole run, at which the decay ends; None for no decay.
        followed: Batch followed before the last change of the batch size; None if it never changed.
    """
    size = followed.reached(len(batch), batch.stop, options.damping) if followed else len(batch)
    return base * scale(options.scaling, size, reference_batch) * _risen(options, batch.stop) * _fallen(options, batch.start, total)


def scale(scaling: str, global_batch: float, reference_batch: int) -> float:
    """Return the factor of the learning rate at a global batch (`sqrt`: COPUS eq. 9); raises InputError for an unknown rule."""
    require_known(scaling, SCALINGS, f"`scaling = {scaling}` is unknown")
    return float((global_batch / reference_batch) ** SCALINGS[scaling])


def _risen(options: RunOptions, seen: int) -> float:
    return min(1.0, seen / options.warmup_samples) if options.warmup_samples else 1.0


def _fallen(options: RunOptions, seen: int, total: int | None) -> float:
    if options.decay == "none" or total is None or total <= options.warmup_samples:
        return 1.0
    begin = options.warmup_samples
    if options.decay == "wsd":
        begin = max(begin, total - (-(-total // 10) if options.decay_samples is None else options.decay_samples))
    progress = min(1.0, max(0.0, (seen - begin) / (total - begin)))
    falling = (1 + math.cos(math.pi * progress)) / 2 if options.decay == "cosine" else 1 - progress
    return options.final_share + (1 - options.final_share) * falling
