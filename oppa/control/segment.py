"""Record a segment of a run: consecutive steps in one configuration with the same local batches."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from oppa.problem.configuration import Configuration
from oppa.table.refinement import StepTimeObservation
from oppa.training.run.step_times import WARM_UP

RECENT = 200
"""Maximum number of step times and losses that are kept; a segment may last for millions of steps."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Segment:
    """Describes a segment of the run, to which steps are added."""

    configuration: Configuration
    local_batches: tuple[int, ...]
    """Samples of each worker, if they differ; such steps do not measure a row of the table."""
    came_from: Configuration | None
    """Previous configuration; None if the job started in this one or returned to it."""
    earlier_batches: tuple[int, ...] = ()
    """Local batches of the previous configuration."""
    steps: int = 0
    warming: int = WARM_UP
    """Remaining warm-up steps, whose times are not counted."""
    counted_s: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=RECENT))
    """Newest step times after the warm-up, in seconds."""
    in_two_s: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=RECENT))
    """The same of single micro-batches that were taken in two to be measured, which takes longer."""
    moved: bool = False
    """True if the segment began with a change of layout."""
    proven: bool = False
    """True once enough steps were counted to measure the speed."""
    refined_at: int = 0
    """Number of its steps when the table was last refined by enough plain ones; 0 before."""

    def took(self, seconds: float, *, in_two: bool = False) -> None:
        """Record one more step."""
        self.steps += 1
        if self.warming:
            self.warming -= 1
        else:
            (self.in_two_s if in_two else self.counted_s).append(seconds)

    @property
    def counted(self) -> int:
        """Return the number of steps after the warm-up, as far as their times are kept."""
        return len(self.counted_s) + len(self.in_two_s)

    def is_due(self, proof: int) -> bool:
        """Return True if the segment should refine the table again.

        That is once `proof` plain steps exist, whenever the steps have doubled since then, and after RECENT more in any case.
        """
        return len(self.counted_s) >= proof and self.steps >= min(2 * self.refined_at, self.refined_at + RECENT)

    @property
    def observation(self) -> StepTimeObservation | None:
        """Return the speed of the segment; None if it has too few counted steps, or measures no row of the table."""
        in_two = len(self.counted_s) < 2
        times_s = self.in_two_s if in_two else self.counted_s
        if len(times_s) < 2 or self.local_batches:
            return None
        return StepTimeObservation.of(self.configuration, list(times_s), in_two=in_two)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        came_from = self.came_from and self.came_from.to_dict()
        return {
            **values,
            "configuration": self.configuration.to_dict(),
            "came_from": came_from,
            "counted_s": list(self.counted_s),
            "in_two_s": list(self.in_two_s),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the segment that `to_dict` wrote."""
        came_from = values["came_from"]
        own = {
            "configuration": Configuration.from_dict(values["configuration"]),
            "local_batches": tuple(values["local_batches"]),
            "came_from": None if came_from is None else Configuration.from_dict(came_from),
            "earlier_batches": tuple(values["earlier_batches"]),
            "counted_s": deque(values["counted_s"], maxlen=RECENT),
            "in_two_s": deque(values.get("in_two_s", ()), maxlen=RECENT),
        }
        return cls(**{**values, **own})
