"""Measure the state of a worker, for a policy that gives each worker its own batch (DYNAMIX, section IV-B).

Network, processor, memory and GPU use are counters of the operating system and of NVML, read once per window. A step's time is split into
the time until this worker's gradients are complete, and the time that it then waits for others. Under synchronous training, a whole step
takes equally long on all workers, so its time does not show which worker is slow.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from oppa.protocol.worker import WorkerState, accuracy_gain
from oppa.training.profiler.clocks import Reading, clock_of
from oppa.training.statistics.device_counters import GpuCounters, GpuReading, NetworkCounters, network_counters
from oppa.training.statistics.validation import hits

FIELDS = tuple(field.name for field in dataclasses.fields(WorkerState))
WHOLE = ("local_batch", "retransmissions")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """Holds the totals at one moment."""

    clock_s: float
    busy_s: float
    """Processor seconds of this process."""
    network: NetworkCounters
    gpu: GpuReading


class WorkerMetrics:
    """Measures this process over windows of steps.

    Args:
        stage: The whole model; a worker's own part of a step ends when the last parameter has its gradient.
        device: Device of the model.
    """

    def __init__(self, stage: nn.Module, device: torch.device) -> None:
        self._clock = clock_of(device)
        self._process, self._memory_bytes, self._gpu = psutil.Process(), psutil.virtual_memory().total, GpuCounters.of(device)
        learning = (parameter for parameter in stage.parameters() if parameter.requires_grad)
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in learning]
        self.restart()

    def restart(self) -> None:
        """Discard the present window, and begin a new one."""
        self._begin(self._read())

    def _begin(self, counters: _Counters) -> None:
        self._paces: list[Reading] = []
        self._steps_s: list[float] = []
        self._hits: list[list[Tensor]] = []
        self._counters = counters

    @property
    def steps(self) -> int:
        """Return the number of steps in the window so far."""
        return len(self._steps_s)

    def begin(self) -> None:
        """Begin a step."""
        self._hits.append([])
        self._pace = self._clock()
        self._reached = self._pace()

    def answered(self, output: Tensor, targets: Tensor) -> None:
        """Record the model's output for a micro-batch; it is ignored unless it has classes along the last dimension."""
        if (found := hits(output, targets)) is not None:
            self._hits[-1].append(found)

    def end(self, step_s: float) -> None:
        """End a step, which took `step_s` seconds."""
        self._paces.append(self._reached)
        self._steps_s.append(step_s)

    def state(self, local_batch: int) -> WorkerState:
        """Return the state over the window, and begin the next one.

        Args:
            local_batch: This worker's samples per step in the window.
        """
        counters, before = self._read(), self._counters
        seconds, network = counters.clock_s - before.clock_s, counters.network.since(before.network)
        compute_s, step_s = (statistics.fmean(each) for each in ([pace() for pace in self._paces], self._steps_s))
        accuracies = _shares([functools.reduce(torch.add, each) for each in self._hits if each]) or [0.0]
        self._begin(counters)
        own_memory = self._process.memory_info().rss / self._memory_bytes
        return WorkerState(
            local_batch=local_batch,
            throughput_bytes_per_s=network.carried_bytes / seconds,
            retransmissions=network.retransmissions,
            cpu_ratio=(counters.busy_s - before.busy_s) / seconds,
            memory_share=counters.gpu.memory_share if self._gpu else own_memory,
            compute_s=compute_s,
            wait_s=max(0.0, step_s - compute_s),
            accuracy=statistics.fmean(accuracies),
            accuracy_deviation=float(np.std(accuracies)),
            accuracy_gain=accuracy_gain(accuracies),
            gpu_busy=counters.gpu.busy,
            nvlink_bytes_per_s=max(0, counters.gpu.nvlink_bytes - before.gpu.nvlink_bytes) / seconds,
        )

    def _read(self) -> _Counters:
        gpu = self._gpu.read() if self._gpu else GpuReading()
        return _Counters(clock_s=time.monotonic(), busy_s=time.process_time(), network=network_counters(), gpu=gpu)

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, _: Tensor) -> None:
        self._reached = self._pace()


def encoded(state: WorkerState) -> list[float]:
    """Return the fields of a state as numbers, to send it between ranks."""
    return [float(getattr(state, name)) for name in FIELDS]


def decoded(values: Sequence[float]) -> WorkerState:
    """Build a state from the result of `encoded`."""
    named: dict[str, Any] = {name: int(value) if name in WHOLE else value for name, value in zip(FIELDS, values, strict=True)}
    return WorkerState(**named)


def _shares(hits: Sequence[Tensor]) -> list[float]:
    """Return the accuracy of each step, from counts that are read from the device all at once."""
    return [right / all_ if all_ else 0.0 for right, all_ in torch.stack(tuple(hits)).tolist()] if hits else []
