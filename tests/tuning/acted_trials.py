"""Act out trials in the tests' process: everything but the training is real."""

import contextlib
import json
import time
from collections.abc import Callable

from oppa.problem.configuration import Configuration
from oppa.trials import trial_folder
from oppa.trials.launcher import LOST, Exit, ProcessExit

ROOM = 100 * 2**20
STEPS_PER_POLL = 3
SILENCE, CRASH, LOSS = float("inf"), -1.0, -2.0
"""Seconds per step of a trial that is silent, crashes, or loses its host."""


def landscape(configuration: Configuration) -> tuple[float, int]:
    """Seconds per step, bytes: as slow as tp is large, faster with larger micro-batches, which need memory."""
    return configuration.tp / configuration.micro_batch**0.5, 20 * 2**20 * configuration.micro_batch


class Actors:
    """Launches trials that report steps as long as a law states, without taking that long."""

    def __init__(self, law: Callable[[Configuration], tuple[float, int]]) -> None:
        self.law = law

    def devices(self, spec, on_tick):
        return contextlib.nullcontext()

    def start(self, folder, spec):
        return Actor(folder, spec, *self.law(spec.configuration))

    def close(self) -> None:
        pass


class Actor:
    """Acts one trial, a few steps at each poll, until it is done, is asked to stop, or is out of memory."""

    def __init__(self, folder, spec, step_time_s: float, memory_bytes: int) -> None:
        self.folder, self.spec, self.step_time_s, self.memory_bytes = folder, spec, step_time_s, memory_bytes
        self.done = 0

    def poll(self) -> Exit | None:
        if self.step_time_s == SILENCE:
            return None
        if self.step_time_s == CRASH:
            return self._exit(1)
        if self.step_time_s == LOSS:
            return Exit(revoked=f"{LOST} n1: it no longer responds")
        if self.memory_bytes > ROOM:
            trial_folder.write_json(self.folder / trial_folder.REPORT, {"outcome": "out_of_memory", "cause": "too large", "rank": 0})
            return self._exit(1)
        if self.done == self.spec.steps or (self.folder / trial_folder.STOP).exists():
            return self._exit(0)
        steps = range(self.done, min(self.done + STEPS_PER_POLL, self.spec.steps))
        lines = [{"step": step, "step_time_s": self.step_time_s, "memory_bytes": self.memory_bytes} for step in steps]
        with (self.folder / trial_folder.MEASUREMENTS).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self.done = steps.stop
        return None

    def _exit(self, code: int) -> Exit:
        return Exit(processes=(ProcessExit(rank=0, code=code, signal=None, time=time.time()),))

    def end(self, grace_s: float) -> None:
        pass
