"""What a window was worth to each worker (DYNAMIX, section IV-D).

    r = A + alpha max(0, dA) - beta T - delta log2(b / b_min)                       for SGD
    r = A + alpha max(0, dA) - beta T - eta (s^2 + s) - delta log2(b / b_min)       for other optimizers

Notation (of one worker's window):
    A, dA    mean accuracy of its batches, and its gain
    T        seconds of a step for each sample of the global batch, against the run's first window
    b        its local batch, at least b_min samples
    s        standard deviation of the step's gradient, as a share of its length

As the paper writes it T is the seconds of a step, which makes tiny batches look fast, and the last term is log2(b) - 5, which is a bonus
for batches below 32 samples: `as_written`.
"""

import dataclasses
import math
from typing import Any, Self

from oppa.control.decision import Situation
from oppa.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The constants of a reward; the paper gives none."""

    alpha: float = 0.1
    beta: float = 1.0
    delta: float = 0.05
    eta: float = 0.05
    adaptive: bool = True
    """The optimizer adapts its steps to gradients: Adam, not SGD."""
    as_written: bool = False

    def __post_init__(self) -> None:
        if wrong := [name for name in ("alpha", "beta", "delta", "eta") if not 0 <= getattr(self, name) < math.inf]:
            raise InputError(f"`{wrong[0]} = {getattr(self, wrong[0])}`", hint="give 0 or more")

    def of(self, situation: Situation, *, least: int, first_sample_s: float) -> list[float]:
        """Of each worker for a window that has ended.

        Args:
            least: The smallest local batch, in samples.
            first_sample_s: Seconds of a step for each sample of the global batch, in the first window of the run.
        """
        total = sum(worker.local_batch for worker in situation.workers)
        variance = max(0.0, situation.variance_ratio or 0.0) / total if self.adaptive else 0.0
        found = []
        for worker in situation.workers:
            took = worker.step_s if self.as_written else worker.step_s / total / first_sample_s
            size = math.log2(worker.local_batch) - 5 if self.as_written else math.log2(worker.local_batch / least)
            noise = self.eta * (variance + math.sqrt(variance))
            found.append(worker.accuracy + self.alpha * max(0.0, worker.accuracy_gain) - self.beta * took - noise - self.delta * size)
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**values)


def sample_s(situation: Situation) -> float:
    """Seconds of a step for each sample of the global batch, in a window."""
    return max(worker.step_s for worker in situation.workers) / sum(worker.local_batch for worker in situation.workers)
