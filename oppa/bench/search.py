"""Compare how soon each designer finds the fastest configuration, on every task and under the same protocol (`oppa bench search`)."""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from oppa.bench.declared import DESIGNERS
from oppa.bench.run_designer import run_designer
from oppa.bench.runs import Key, Log, Run
from oppa.bench.tasks import SUITES, load_suite, suite_inputs
from oppa.bench.variations import PLAIN, VARIATIONS, Variation
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.trials.processes import die_with_parent
from oppa.tuning.designers import require_designer

VARIED_SEEDS = 3
"""Seeds of each variation; few, because there are many variations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Defines a comparison: its designers, their tasks, and the numbers of seeds and trials."""

    suite: str
    table: Path | None = None
    designers: tuple[str, ...] = DESIGNERS
    seeds: int = 10
    trials: int = 30
    variations: tuple[str, ...] = (PLAIN,)
    """Names of VARIATIONS; only `oppa` runs under those other than the plain one."""

    def protocol(self, tasks: Sequence[BenchmarkTask]) -> dict[str, Any]:
        """Return what must be equal for runs to be comparable, and the names of tasks that are reported separately."""
        inputs = suite_inputs(self.suite, self.table).to_dict()
        name = self.suite if self.suite in SUITES else Path(self.suite).name
        apart = [task.name for task in tasks if not task.headline]
        return {"suite": name, "trials": self.trials, "apart": apart, "tasks": inputs["tasks"], "files": inputs["files"]}

    def tasks(self) -> tuple[list[BenchmarkTask], list[str]]:
        """Return the tasks with a feasible configuration, and the names of the others; raises InputError for an unknown designer."""
        for name in self.designers:
            require_designer(name)
        tasks = load_suite(self.suite, self.table)
        return [task for task in tasks if task.feasible], [task.name for task in tasks if not task.feasible]


def compare(comparison: Comparison, tasks: Sequence[BenchmarkTask], log: Log | None, on_run: Callable[[Run, int, int], None]) -> list[Run]:
    """Return all runs. Those missing from the log run now, one per core at a time, and are appended to it as they end.

    Args:
        on_run: Called with each new run, the number of runs that are done, and their total.
    """
    done = {run.key: run for run in log.read()} if log else {}
    wanted = list(_keys(comparison, tasks))
    missing = [key for key in wanted if key not in done]
    for run in _runs(comparison, missing):
        if log:
            log.append(run)
        done[run.key] = run
        on_run(run, len(wanted) - len(missing) + sum(key in done for key in missing), len(wanted))
    return [done[key] for key in wanted]


def _keys(comparison: Comparison, tasks: Sequence[BenchmarkTask]) -> Iterator[Key]:
    """Yield the keys of the runs one seed at a time, so that an interrupted comparison covers every designer and task."""
    for seed in range(comparison.seeds):
        for variation in comparison.variations if seed < VARIED_SEEDS else (PLAIN,):
            for task in tasks:
                for designer in comparison.designers if variation == PLAIN else ("oppa",):
                    yield task.name, designer, seed, variation


def _runs(comparison: Comparison, keys: Sequence[Key]) -> Iterator[Run]:
    """Yield the runs as they end, with one process per core; each is single-threaded and depends only on its seed."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context, initializer=_settle, initargs=(os.getpid(),))
    try:
        for future in concurrent.futures.as_completed([pool.submit(_run, comparison, *key) for key in keys]):
            yield future.result()
    except BaseException:
        for worker in multiprocessing.active_children():  # the next call repeats their runs
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _settle(parent: int) -> None:
    """Make a worker end with its parent and ignore SIGINT, which the parent handles."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(comparison: Comparison, task_name: str, designer_name: str, seed: int, variation_name: str) -> Run:
    variation = VARIATIONS[variation_name]
    task = variation.task(_tasks(comparison.suite, comparison.table, variation)[task_name])
    designer = variation.designer(designer_name, task, seed)
    records = run_designer(task, designer, variation.rule(designer_name, task), seed=seed, trials=comparison.trials)
    return Run.of(task, designer_name, seed, variation_name, records)


@functools.cache
def _tasks(suite: str, table: Path | None, variation: Variation) -> dict[str, BenchmarkTask]:
    return {task.name: task for task in load_suite(suite, table, variation.noise)}
