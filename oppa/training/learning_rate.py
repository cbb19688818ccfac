"""The learning rate of a step: of its global batch, and of how many samples were seen; never of how many steps were taken."""

import dataclasses
import math

from oppa.errors import InputError, nearest
from oppa.problem.training import Recipe

SCALINGS = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}
"""Exponents: what is multiplied with the learning rate is (global batch / reference batch) to this power."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The batch that the learning rate followed when batches were last given another size."""

    batch: float
    """In samples."""
    since: int
    """Samples seen by then."""

    def reached(self, global_batch: int, seen: int, damping: int) -> float:
        """The batch that it follows now: a larger one little by little until `damping` such batches were seen, a smaller one at once."""
        share = min(1.0, (seen - self.since) / (damping * global_batch)) if damping else 1.0
        return min(float(global_batch), self.batch + (global_batch - self.batch) * share)


def learning_rate(
    recipe: Recipe, *, base: float, reference_batch: int, batch: range, total: int | None, followed: Followed | None = None
) -> float:
    """Of the step over the samples `batch`, by their numbers from the start of the run on.

    Changing the batch size from B to B' multiplies it with sqrt(B' / B) (COPUS eq. 9), however it was reached, as all of it is
    base * sqrt(B / reference); where B has grown, little by little.

    Args:
        base: The learning rate at the reference batch, when it has risen and not fallen yet.
        reference_batch: The global batch that it was chosen for, in samples.
        total: Samples of the whole run, where it falls to its end.
        followed: Before batches were given their present size; None if they always had it.
    """
    size = followed.reached(len(batch), batch.stop, recipe.damping) if followed else len(batch)
    return base * scale(recipe.scaling, size, reference_batch) * _risen(recipe, batch.stop) * _fallen(recipe, batch.start, total)


def scale(scaling: str, global_batch: float, reference_batch: int) -> float:
    """What the learning rate is multiplied with at a global batch (`sqrt`: COPUS eq. 9); raises InputError for an unknown rule."""
    if scaling not in SCALINGS:
        raise InputError(f"`scaling = {scaling}` is unknown", hint=nearest(scaling, SCALINGS))
    return float((global_batch / reference_batch) ** SCALINGS[scaling])


def _risen(recipe: Recipe, seen: int) -> float:
    return min(1.0, seen / recipe.warmup_samples) if recipe.warmup_samples else 1.0


def _fallen(recipe: Recipe, seen: int, total: int | None) -> float:
    if recipe.decay == "none" or total is None or total <= recipe.warmup_samples:
        return 1.0
    progress = min(1.0, max(0.0, (seen - recipe.warmup_samples) / (total - recipe.warmup_samples)))
    falling = (1 + math.cos(math.pi * progress)) / 2 if recipe.decay == "cosine" else 1 - progress
    return recipe.final_share + (1 - recipe.final_share) * falling
