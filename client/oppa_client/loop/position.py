"""Count the progress of a run under oppa by samples."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Position:
    """Holds how far a run under oppa is, and how long it is.

    Args:
        samples: Samples taken so far.
        total: Samples of the whole training.
        reference: Samples of a step of the framework's own arguments, such as warm-up steps.
    """

    samples: int
    total: int
    reference: float
    start: int = dataclasses.field(init=False)
    """Samples taken before the first step of this process."""
    before: int = dataclasses.field(init=False)
    """Samples taken before the last step."""

    def __post_init__(self) -> None:
        self.start = self.before = self.samples

    def take(self, samples: int) -> None:
        """Go on by the samples of a step."""
        self.before, self.samples = self.samples, self.samples + samples

    def passed(self, steps: float) -> bool:
        """Return True if a multiple of so many steps of the framework's arguments ended with the last step, or within it."""
        interval = steps * self.reference
        return self.samples // interval > self.before // interval

    @property
    def is_done(self) -> bool:
        """Return True if all samples are taken."""
        return self.samples >= self.total
