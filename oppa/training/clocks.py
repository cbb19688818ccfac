"""Clocks of a device: moments are noted as they pass, and read later."""

import time
from collections.abc import Callable

import torch

Reading = Callable[[], float]
"""Seconds; asked for when nothing is in a hurry."""
Clock = Callable[[], Callable[[], Reading]]
"""Begins when it is called; what it returns notes a moment each time that it is called."""


def clock_of(device: torch.device) -> Clock:
    """By CUDA's events, which the device stamps itself, or by this machine's clock."""
    return _cuda_clock if device.type == "cuda" else _cpu_clock


def _cpu_clock() -> Callable[[], Reading]:
    begin_s = time.perf_counter()

    def reached() -> Reading:
        passed_s = time.perf_counter() - begin_s
        return lambda: passed_s

    return reached


def _cuda_clock() -> Callable[[], Reading]:
    """The device's work is only begun when a hook runs."""
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
