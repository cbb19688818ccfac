"""Expect how long a trial takes, from the trials that a search has run.

Notation:
    start    median seconds of a measured trial outside its steps: its start-up and its end
    steps    median number of steps of a measured trial
    fits     probability that the configuration fits in memory; a trial that does not fit takes its start alone
    trial    start + fits * steps / rate
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from oppa.tuning.designer import Observation

if TYPE_CHECKING:
    from torch import Tensor

Values = TypeVar("Values", float, "Tensor")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialLength:
    """Holds what a typical trial of a search takes."""

    start_s: float
    steps: float

    @classmethod
    def of(cls, seen: Sequence[Observation]) -> Self | None:
        """Return the medians over the trials that measured steps; None if there are none."""
        timed = [each for each in seen if each.measured and each.step_times_s]
        if not timed:
            return None
        return cls(
            start_s=statistics.median(max(0.0, each.seconds - sum(each.step_times_s)) for each in timed),
            steps=statistics.median(len(each.step_times_s) for each in timed),
        )

    def seconds(self, step_s: Values, fits: Values | float = 1.0) -> Values:
        """Return the expected seconds of a trial whose steps take so long."""
        return self.start_s + fits * self.steps * step_s
