"""How a worker sums itself up, for a policy that gives each its own batch (DYNAMIX, section IV-B).

Network, processor and memory are the operating system's counters, read once a window. The pace is a step's own time until this worker's
gradients are there, and what it then waits for others: under synchronous training a whole step takes all workers as long, and says of none
of them whether it is slow.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from oppa.protocol.worker import WorkerState, accuracy_gain
from oppa.training.accuracy import hits
from oppa.training.clocks import Reading, clock_of

FIELDS = tuple(field.name for field in dataclasses.fields(WorkerState))
WHOLE = ("local_batch", "retransmissions")


class Worker:
    """Keeps account of this process, step by step.

    Args:
        stage: The whole model; when the last of its parameters has got its gradient, a worker's own part of a step is over.
        device: That it is on.
    """

    def __init__(self, stage: nn.Module, device: torch.device) -> None:
        self._clock = clock_of(device)
        self._process, self._memory_bytes = psutil.Process(), psutil.virtual_memory().total
        learning = (parameter for parameter in stage.parameters() if parameter.requires_grad)
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in learning]
        self.restart()

    def restart(self) -> None:
        """Begin a window."""
        self._begin(_counters())

    def _begin(self, counters: tuple[float, ...]) -> None:
        self._paces: list[Reading] = []
        self._steps_s: list[float] = []
        self._hits: list[list[Tensor]] = []
        self._counters = counters

    @property
    def steps(self) -> int:
        """Of the window, so far."""
        return len(self._steps_s)

    def begin(self) -> None:
        """A step begins."""
        self._hits.append([])
        self._pace = self._clock()
        self._reached = self._pace()

    def answered(self, output: Tensor, targets: Tensor) -> None:
        """What the model has made of a micro-batch: classes along the last dimension, or it is passed over."""
        if (found := hits(output, targets)) is not None:
            self._hits[-1].append(found)

    def end(self, step_s: float) -> None:
        """The step took so long."""
        self._paces.append(self._reached)
        self._steps_s.append(step_s)

    def state(self, local_batch: int) -> WorkerState:
        """What the window has seen; the next one begins.

        Args:
            local_batch: That it was all about, in samples.
        """
        counters = _counters()
        seconds, busy_s, carried, again = (now - before for now, before in zip(counters, self._counters, strict=True))
        compute_s, step_s = (statistics.fmean(each) for each in ([pace() for pace in self._paces], self._steps_s))
        accuracies = _shares([functools.reduce(torch.add, each) for each in self._hits if each]) or [0.0]
        self._begin(counters)
        return WorkerState(
            local_batch=local_batch,
            throughput_bytes_per_s=carried / seconds,
            retransmissions=round(again),
            cpu_ratio=busy_s / seconds,
            memory_share=self._process.memory_info().rss / self._memory_bytes,
            compute_s=compute_s,
            wait_s=max(0.0, step_s - compute_s),
            accuracy=statistics.fmean(accuracies),
            accuracy_deviation=float(np.std(accuracies)),
            accuracy_gain=accuracy_gain(accuracies),
        )

    def close(self) -> None:
        """Let go of the model."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, _: Tensor) -> None:
        self._reached = self._pace()


def encoded(state: WorkerState) -> list[float]:
    """As it travels between ranks."""
    return [float(getattr(state, name)) for name in FIELDS]


def decoded(values: Sequence[float]) -> WorkerState:
    """The inverse of `encoded`."""
    named: dict[str, Any] = {name: int(value) if name in WHOLE else value for name, value in zip(FIELDS, values, strict=True)}
    return WorkerState.from_dict(named)


def _shares(hits: Sequence[Tensor]) -> list[float]:
    """Of each step, read from the device all at once."""
    return [right / all_ if all_ else 0.0 for right, all_ in torch.stack(tuple(hits)).tolist()] if hits else []


def _counters() -> tuple[float, float, float, float]:
    """Seconds on the clock, seconds of processor time, bytes carried, and TCP segments sent again, so far."""
    carried = psutil.net_io_counters(nowrap=False)
    return time.monotonic(), time.process_time(), float(carried.bytes_sent + carried.bytes_recv), float(_retransmitted())


def _retransmitted() -> int:
    """TCP segments that this host has sent again; 0 where nobody counts them."""
    try:
        names, values = (line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if line.startswith("Tcp:"))
    except OSError:
        return 0
    return int(dict(zip(names, values, strict=True)).get("RetransSegs", 0))
