"""Measure seconds of work on a device: by CUDA events, which the device records itself, or by the host's clock."""

import time

import torch


class Stopwatch:
    """Measures the seconds of the work between `start` and `stop`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start_s = 0.0
        self._started: torch.cuda.Event | None = None

    def start(self) -> None:
        """Start the measurement."""
        if self._device.type == "cuda":
            self._started = self._event()
        self._start_s = time.monotonic()

    def stop(self) -> float:
        """Return the seconds since `start`; on a CUDA device, up to the end of the work submitted so far."""
        if self._started is None:
            return time.monotonic() - self._start_s
        ended = self._event()
        ended.synchronize()
        return float(self._started.elapsed_time(ended)) / 1e3

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
