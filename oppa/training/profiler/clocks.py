"""Measure time on a device: moments are recorded as they pass, and read later."""

import time
from collections.abc import Callable

import torch

Reading = Callable[[], float]
"""Returns the seconds of a recorded moment; it may wait for the device, so it is called outside of the timed work."""
Clock = Callable[[], Callable[[], Reading]]
"""Starts a clock; each call of the returned function records a moment."""


def clock_of(device: torch.device) -> Clock:
    """Return a clock that uses CUDA events, which the device itself stamps, or the host's clock for a CPU."""
    return _cuda_clock if device.type == "cuda" else _cpu_clock


def _cpu_clock() -> Callable[[], Reading]:
    begin_s = time.perf_counter()

    def reached() -> Reading:
        passed_s = time.perf_counter() - begin_s
        return lambda: passed_s

    return reached


def _cuda_clock() -> Callable[[], Reading]:
    """Start a clock of CUDA events; when a hook runs, the device may still have queued work ahead of it."""
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()

    def reached() -> Reading:
        end = torch.cuda.Event(enable_timing=True)
        end.record()

        def passed_s() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000

        return passed_s

    return reached
