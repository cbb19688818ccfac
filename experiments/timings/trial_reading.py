"""Measure the share of a trial that its tuner spends on its files, which it does not trust."""

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.timings.interleaved import spread
from experiments.timings.startup import RANKS, local_launcher, spec
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.training import Limits
from oppa.report.record import Section
from oppa.trials import trial
from oppa.trials.monitor import TrialMonitor
from oppa.trials.runner import load_runner

LIMIT = 0.01
"""Largest share of a trial that it is to take."""
STEPS = 400
_READERS = ((TrialMonitor, "poll"), (TrialMonitor, "check_time"), (trial, "_verdict"))
"""The functions of a trial that read its files: its new steps, whether it is paused, and its end."""


@dataclasses.dataclass(slots=True)
class _Cost:
    """Counts the seconds inside the functions that read a trial's files."""

    calls: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def trial_reading(repeats: int) -> list[Section]:
    """Measure the seconds inside all functions that read a trial's files, over the seconds of the trial.

    Raises:
        EnvironmentLackingError: a trial did not complete.
    """
    looks, cpu, wall = [], [], []
    with tempfile.TemporaryDirectory() as folder, local_launcher(load_runner(catalog.find("runners", "torch"))) as launcher:
        for number in range(repeats):
            with _timed() as cost:
                long = dataclasses.replace(spec(), steps=STEPS)
                result = trial.run_trial(launcher, Path(folder, "trials", str(number)), long, limits=Limits(trial_time_s=300.0))
            if result.outcome != "completed":
                raise EnvironmentLackingError(f"a trial ended as {result.outcome}: {result.cause}", hint="run `oppa doctor`")
            looks.append(float(cost.calls))
            cpu.append(100 * cost.cpu_s / result.seconds)
            wall.append(100 * cost.wall_s / result.seconds)
    rows = [("looks", spread(looks)), ("share of the trial, CPU time, %", spread(cpu)), ("the same, wall clock, %", spread(wall))]
    text = f"{repeats} trials of {RANKS} ranks and {STEPS} steps. The limit is {LIMIT:.0%}. Checks of time limits count as reading."
    return [Section(title="Reading a trial's files", text=text, columns=("figure", "median (min - max)"), rows=rows)]


@contextlib.contextmanager
def _timed() -> Iterator[_Cost]:
    """Yield the cost of reading while the context is open."""
    cost = _Cost()
    with contextlib.ExitStack() as stack:
        for owner, name in _READERS:
            stack.enter_context(patch.object(owner, name, _adding(getattr(owner, name), cost)))
        yield cost


def _adding(function: Callable[..., Any], cost: _Cost) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **keywords: Any) -> Any:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return function(*args, **keywords)
        finally:
            cost.calls += 1
            cost.cpu_s += time.thread_time() - began_cpu_s
            cost.wall_s += time.perf_counter() - began_s

    return timed
