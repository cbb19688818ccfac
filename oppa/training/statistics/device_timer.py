"""Time pieces of work by the clock on a CPU, and by events on a CUDA device, which works later than the host asks."""

import time

import torch

Begin = float | torch.cuda.Event | None
"""A time on a CPU, or an event; None while nothing is timed."""


class DeviceTimer:
    """Adds up the time of pieces of work, once `running` is set.

    Args:
        device: Device of the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda, self.running = device.type == "cuda", False
        self._taken_s, self._events = 0.0, list[tuple[torch.cuda.Event, torch.cuda.Event]]()

    def begin(self) -> Begin:
        """Begin a piece of work."""
        if not self.running:
            return None
        return _recorded() if self._cuda else time.perf_counter()

    def end(self, began: Begin) -> None:
        """End the piece of work that `begin` has begun."""
        if isinstance(began, float):
            self._taken_s += time.perf_counter() - began
        elif began is not None:
            self._events.append((began, _recorded()))

    def take_s(self) -> float:
        """Return the seconds of all work since the last call, which the device has ended."""
        taken_s: float = self._taken_s + sum(begin.elapsed_time(end) for begin, end in self._events) / 1e3
        self.clear()
        return taken_s

    def clear(self) -> None:
        """Forget all work so far."""
        self._taken_s, self._events = 0.0, []


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
