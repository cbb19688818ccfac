"""Seconds on a device: by CUDA events, which the device stamps itself, or by this machine's clock."""

import time

import torch


class Stopwatch:
    """Takes the time of what is begun after `start` and ended by `stop`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start_s = 0.0
        self._started: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begin."""
        if self._device.type == "cuda":
            self._started = self._event()
        self._start_s = time.monotonic()

    def stop(self) -> float:
        """Seconds since `start`; on a CUDA device behind all that it was given to do."""
        if self._started is None:
            return time.monotonic() - self._start_s
        ended = self._event()
        ended.synchronize()
        return float(self._started.elapsed_time(ended)) / 1e3

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
