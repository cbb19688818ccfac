"""State how much the comparison of trainers measures: all of it for a record, or a short form that shows whether it works."""

import dataclasses
from collections.abc import Sequence

SHORT = ("transformers", "fsdp2")
"""Trainers of the short form."""
_SHARE = 5
"""Factor by which trainings of the short form are shorter."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Holds how much is measured.

    Args:
        repeats: Pairs of restarts whose pauses are compared, and hundreds of steps whose statistics are timed.
        short: Whether to leave out pauses, and to shorten the rest.
        gpu: Kind of the GPU on which one rank trains; empty: two ranks train on CPUs.
    """

    repeats: int
    short: bool = False
    gpu: str = ""

    @property
    def has_few_starts(self) -> bool:
        """Return whether one run of two attempts replaces two runs of three attempts, because a start on a GPU may take 20 seconds."""
        return self.short or bool(self.gpu)

    def includes(self, trainer: str) -> bool:
        """Return whether a trainer is compared."""
        return not self.short or trainer in SHORT

    def samples(self, usual: int) -> int:
        """Return the samples of a training."""
        return usual // _SHARE if self.short else usual

    def micro_batches(self, usual: Sequence[int]) -> Sequence[int]:
        """Return the samples of a micro-batch with which statistics are timed."""
        return usual[-1:] if self.short else usual

    @property
    def ranks(self) -> int:
        """Return the number of ranks of a run."""
        return 1 if self.gpu else 2

    @property
    def places(self) -> str:
        """Return where the attempts of a run ran that is stopped and resumed."""
        if self.gpu:
            return f"on one {self.gpu}"
        return f"on {'1 and 2' if self.short else '2, 1 and 2'} ranks"

    @property
    def settling(self) -> int:
        """Return the steps in which the interval of statistics settles, which do not count."""
        return 10 if self.short else 100

    @property
    def timed_steps(self) -> int:
        """Return the steps that count."""
        return 30 if self.short else 100 * self.repeats
