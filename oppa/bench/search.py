"""Compare how soon each designer finds the fastest configuration, on every task and under the same protocol (`oppa bench search`)."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from oppa.bench.declared import DESIGNERS, PROTOCOL
from oppa.bench.run_designer import run_designer
from oppa.bench.runs import Key, Log, SearchRun
from oppa.bench.suites import MOST_TASKS, PEER_SEEDS, SUITES
from oppa.bench.tasks import load_suite, spread, suite_inputs
from oppa.bench.variations import PLAIN, VARIATIONS, Variation
from oppa.bench.worker_pool import worker_pool
from oppa.errors import InputError
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.tuning.designer import Designer
from oppa.tuning.designers import make_designer, require_designer
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate_summary import surrogate_summaries

VARIED_SEEDS = 3
"""Seeds of each variation; few, because there are many variations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Defines a comparison: its designers, their tasks, and the numbers of seeds and trials."""

    suite: str
    table: Path | None = None
    designers: tuple[str, ...] = DESIGNERS
    seeds: int = 10
    peer_seeds: int | None = None
    """Number of seeds of all designers but `oppa`; None for as many."""
    trials: int = 30
    most_tasks: int | None = None
    """Number of tasks to choose, spread over the suite; None for all."""
    variations: tuple[str, ...] = (PLAIN,)
    """Names of VARIATIONS. Each names the designers that run under it."""

    def protocol(self, tasks: Sequence[BenchmarkTask]) -> dict[str, Any]:
        """Return what must be equal for runs to be comparable, and the names of tasks that are reported separately."""
        inputs = suite_inputs(self.suite, self.table).to_dict()
        name = self.suite if self.suite in SUITES else Path(self.suite).name
        apart = [task.name for task in tasks if not task.headline]
        numbers = {"protocol": PROTOCOL, "trials": self.trials}
        return {"suite": name, **numbers, "apart": apart, "tasks": inputs["tasks"], "files": inputs["files"]}

    def tasks(self) -> tuple[list[BenchmarkTask], list[str]]:
        """Return the tasks with a feasible configuration, and the names of the others.

        Raises:
            InputError: a designer is unknown, or no task has a feasible configuration.
        """
        for name in self.designers:
            require_designer(name)
        tasks = load_suite(self.suite, self.table)
        feasible = [task for task in tasks if task.feasible]
        if not feasible:
            raise InputError(f"no task of `{self.suite}` has a configuration that runs", hint="add measurements of runs that completed")
        chosen = feasible if self.most_tasks is None else spread(feasible, self.most_tasks)
        return chosen, [task.name for task in tasks if not task.feasible]

    def without_unable(self, tasks: Sequence[BenchmarkTask]) -> tuple[Self, dict[str, str]]:
        """Return the comparison without the designers that a task gives no model to work with, and why each is left out."""
        reasons: dict[str, str] = {}
        for task in (task for task in tasks if not task.problem.has_prior):
            for name in self.designers:
                try:
                    make_designer(name, task.problem, task.candidates, seed=0)
                except InputError as error:
                    reasons.setdefault(name, error.message)
        kept = tuple(name for name in self.designers if name not in reasons)
        return dataclasses.replace(self, designers=kept), reasons

    def without_void(self, tasks: Sequence[BenchmarkTask]) -> tuple[Self, dict[str, str]]:
        """Return the comparison without the variations that its tasks cannot run under, and why each is left out."""
        obstacles = {name: VARIATIONS[name].obstacle(self.suite, tasks) for name in self.variations}
        reasons = {name: why for name, why in obstacles.items() if why}
        return dataclasses.replace(self, variations=tuple(name for name in self.variations if name not in reasons)), reasons

    def seeds_of(self, designer: str) -> int:
        """Return the number of seeds of a designer."""
        return self.seeds if designer == "oppa" or self.peer_seeds is None else min(self.seeds, self.peer_seeds)

    def runs_under(self, variation: str) -> tuple[str, ...]:
        """Return the designers that run under a variation."""
        return self.designers if variation == PLAIN else tuple(name for name in VARIATIONS[variation].designers if name in self.designers)


def every_suite(designers: tuple[str, ...], *, seeds: int, trials: int) -> list[Comparison]:
    """Return a comparison for each suite, in which `oppa` has more seeds than its opponents."""
    made = []
    for name, suite in SUITES.items():
        able = tuple(each for each in designers if not suite.designers or each in suite.designers)
        comparison = Comparison(
            suite=name,
            designers=able,
            seeds=seeds,
            peer_seeds=PEER_SEEDS,
            trials=trials,
            most_tasks=MOST_TASKS,
            variations=(PLAIN, *suite.variations, *suite.recorded),
        )
        made.append(comparison)
    return made


def compare(
    comparison: Comparison, tasks: Sequence[BenchmarkTask], log: Log | None, on_run: Callable[[SearchRun, int, int], None]
) -> list[SearchRun]:
    """Return all runs. Those missing from the log run now, one per core at a time, and are appended to it as they end.

    Args:
        on_run: Called with each new run, the number of runs that are done, and their total.

    Raises:
        EnvironmentLackingError: a designer needs a library that is not installed.
    """
    done = {run.key: run for run in log.read()} if log else {}
    wanted = list(_keys(comparison, tasks))
    missing = [key for key in wanted if key not in done]
    for name in dict.fromkeys(designer for _, designer, _, _ in missing):
        make_designer(name, tasks[0].problem, tasks[0].candidates, seed=0)  # refuses one without its library before anything runs
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
                for designer in comparison.runs_under(variation):
                    if seed < comparison.seeds_of(designer):
                        yield task.name, designer, seed, variation


def _runs(comparison: Comparison, keys: Sequence[Key]) -> Iterator[SearchRun]:
    """Yield the runs as they end, with one process per core; each is single-threaded and depends only on its seed."""
    with worker_pool() as pool:
        for future in concurrent.futures.as_completed([pool.submit(_run, comparison, *key) for key in keys]):
            yield future.result()


def _run(comparison: Comparison, task_name: str, designer_name: str, seed: int, variation_name: str) -> SearchRun:
    variation = VARIATIONS[variation_name]
    task = variation.task(_tasks(comparison.suite, comparison.table, variation)[task_name])
    designer = variation.designer(designer_name, task, seed)
    records = run_designer(task, designer, variation.rule(designer_name, task), seed=seed, trials=comparison.trials)
    return SearchRun.of(task, designer_name, seed, variation_name, records, _length_scales(designer, task))


def _length_scales(designer: Designer, task: BenchmarkTask) -> Mapping[str, float] | None:
    """Return the log length scales that `oppa` has learned for throughput; None for other designers, and if it has learned nothing."""
    learned = surrogate_summaries(designer, task.candidates) if isinstance(designer, Oppa) else {}
    return learned["throughput"].log_lengthscales if "throughput" in learned else None


@functools.cache
def _tasks(suite: str, table: Path | None, variation: Variation) -> dict[str, BenchmarkTask]:
    return {task.name: task for task in load_suite(suite, table, variation.noise)}
