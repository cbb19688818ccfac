"""Count the progress of a run under oppa by samples."""

from __future__ import annotations

import dataclasses
import math

from oppa_client.run import Run


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

    @classmethod
    def of(cls, run: Run | None, total: float, batch: float = 1.0) -> Position:
        """Return the position at which this process begins.

        Args:
            run: The run; None outside oppa.
            total: Samples of the whole training, unless the run states them.
            batch: Global batch outside oppa.
        """
        samples = run.resume.samples if run and run.resume else 0
        return cls(samples, (run and run.total_samples) or math.ceil(total), run.reference_batch if run else batch)

    def take(self, samples: int) -> None:
        """Go on by the samples of a step."""
        self.before, self.samples = self.samples, self.samples + samples

    def passed(self, steps: float) -> bool:
        """Return True if a multiple of so many steps of the framework's arguments ended with the last step, or within it."""
        return self.crossed(steps * self.reference)

    def crossed(self, samples: float) -> bool:
        """Return True if a multiple of so many samples ended with the last step, or within it."""
        return self.samples // samples > self.before // samples

    @property
    def is_done(self) -> bool:
        """Return True if all samples are taken."""
        return self.samples >= self.total

    def finishes(self, run: Run) -> bool:
        """Return True if the training is complete, in a run that states no number of samples."""
        return run.total_samples is None and self.is_done
