"""Time whole steps, apart by whether their gradients are measured, and the work of measuring inside them."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from oppa.training.statistics.device_timer import Begin, DeviceTimer

OTHERS = 32
"""Largest number of steps with which a measured one is compared; the events of more would pile up while none is measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSeconds:
    """Holds the seconds of a measured step; a value of 0 is not known."""

    inside: float = 0.0
    """Seconds that measuring took."""
    measured: float = 0.0
    """Seconds of the step."""
    other: float = 0.0
    """Mean seconds of the first steps like it since the measured one before."""


class StepClock:
    """Times steps, once one has begun.

    Args:
        device: Device of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self.inside, self._measured, self._others = (DeviceTimer(device) for _ in range(3))
        self._began: Begin = None
        self._taken = False
        """True if the present step has done its work."""
        self._micro_batches, self._count = 0, 0
        """Micro-batches of the present step, and the steps of `_others`."""

    def begin(self) -> None:
        """Begin a step, before anything is done for it."""
        for timer in (self.inside, self._measured, self._others):
            timer.running = True
        self._began, self._taken = self._measured.begin(), False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the seconds of a context as measuring."""
        began = self.inside.begin()
        yield
        self.inside.end(began)

    def took(self, micro_batches: int) -> None:
        """Let `end` end the step, which had so many micro-batches. Steps with another number are no longer compared with it."""
        if micro_batches != self._micro_batches:
            self._others.clear()
            self._micro_batches, self._count = micro_batches, 0
        self._taken = self._began is not None

    def end(self, *, measured: bool) -> None:
        """End the step, if it has done its work."""
        if not self._taken:
            return
        if measured:
            self._measured.end(self._began)
        elif self._count < OTHERS:
            self._others.end(self._began)
            self._count += 1
        self._began, self._taken = None, False

    def take(self) -> StepSeconds:
        """Return the seconds of a measured step that has ended, and forget them."""
        others_s = self._others.take_s()
        found = StepSeconds(self.inside.take_s(), self._measured.take_s(), others_s / self._count if self._count else 0.0)
        self._count = 0
        return found
