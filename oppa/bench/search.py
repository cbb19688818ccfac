"""Does the search find the fastest sooner than its peers? Every designer at every task, under the same protocol (`oppa bench search`)."""

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
from oppa.bench.play import play
from oppa.bench.runs import Log, Run
from oppa.bench.tasks import SUITES, load_suite, suite_inputs
from oppa.bench.variations import PLAIN, VARIATIONS, Variation
from oppa.simulator.task import Task
from oppa.trials.processes import die_with_parent
from oppa.tuning.designers import require_designer

VARIED_SEEDS = 3
"""Of the variations, which are many."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which designers are compared, on what, how often and for how long."""

    suite: str
    table: Path | None = None
    designers: tuple[str, ...] = DESIGNERS
    seeds: int = 10
    trials: int = 30
    variations: tuple[str, ...] = (PLAIN,)
    """Names of VARIATIONS; all but the plain one are played by `oppa` alone."""

    def protocol(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """What must be the same for runs to be compared, and which tasks are reported apart."""
        inputs = suite_inputs(self.suite, self.table).to_dict()
        name = self.suite if self.suite in SUITES else Path(self.suite).name
        apart = [task.name for task in tasks if not task.headline]
        return {"suite": name, "trials": self.trials, "apart": apart, "tasks": inputs["tasks"], "files": inputs["files"]}

    def tasks(self) -> tuple[list[Task], list[str]]:
        """The tasks in which something can run, and the names of the others; raises InputError for an unknown designer."""
        for name in self.designers:
            require_designer(name)
        tasks = load_suite(self.suite, self.table)
        return [task for task in tasks if task.feasible], [task.name for task in tasks if not task.feasible]


def compare(comparison: Comparison, tasks: Sequence[Task], log: Log | None, on_run: Callable[[Run, int, int], None]) -> list[Run]:
    """All runs, those of the log included; the others are played now, one per core at a time, and go into the log as they end.

    Args:
        on_run: Called with each run that was played, how many are done, and how many there are.
    """
    done = {run.key: run for run in log.read()} if log else {}
    wanted = list(_jobs(comparison, tasks))
    missing = [job for job in wanted if job.key not in done]
    for run in _played(missing):
        if log:
            log.append(run)
        done[run.key] = run
        on_run(run, len(wanted) - len(missing) + sum(job.key in done for job in missing), len(wanted))
    return [done[job.key] for job in wanted]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    suite: str
    table: Path | None
    task: str
    designer: str
    seed: int
    variation: str
    trials: int

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.task, self.designer, self.seed, self.variation


def _jobs(comparison: Comparison, tasks: Sequence[Task]) -> Iterator[_Job]:
    """A seed at a time, so that what is done when it is broken off says something of every designer and task."""
    for seed in range(comparison.seeds):
        for variation in comparison.variations if seed < VARIED_SEEDS else (PLAIN,):
            for task in tasks:
                for designer in comparison.designers if variation == PLAIN else ("oppa",):
                    yield _Job(
                        suite=comparison.suite,
                        table=comparison.table,
                        task=task.name,
                        designer=designer,
                        seed=seed,
                        variation=variation,
                        trials=comparison.trials,
                    )


def _played(jobs: Sequence[_Job]) -> Iterator[Run]:
    """Every job in as many processes as there are cores, as they end; each is single-threaded and depends on its seed alone."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context, initializer=_settle, initargs=(os.getpid(),))
    try:
        for future in concurrent.futures.as_completed([pool.submit(_play, job) for job in jobs]):
            yield future.result()
    except BaseException:
        for worker in multiprocessing.active_children():  # what they play is lost, and played again by the next call
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _settle(parent: int) -> None:
    """A worker ends with its parent, who alone hears of interrupts."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _play(job: _Job) -> Run:
    variation = VARIATIONS[job.variation]
    task = variation.task(_tasks(job.suite, job.table, variation)[job.task])
    designer = variation.designer(job.designer, task, job.seed)
    played = play(task, designer, variation.rule(job.designer, task), seed=job.seed, trials=job.trials)
    return Run.of(task, job.designer, job.seed, job.variation, played)


@functools.cache
def _tasks(suite: str, table: Path | None, variation: Variation) -> dict[str, Task]:
    return {task.name: task for task in load_suite(suite, table, variation.noise)}
