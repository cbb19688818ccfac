"""Load the tasks: a job at full size and at a smaller one, both simulated or both replayed from nanotron's runs."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.registry import PROXY, PROXY_MEASURED
from oppa import catalog
from oppa.bench.tasks import load_suite
from oppa.errors import InputError, SpaceError
from oppa.problem.job import load_job
from oppa.problem.training import ProxyChoice
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.simulator import Simulator
from oppa.tuning.proxy.choice import SHOWN, choose, promising, proposed_hosts, shown
from oppa.tuning.proxy.stand_ins import Proxy, images

HOSTS: Mapping[str, int] = dict(zip(PROXY, (64, 64, 32, 32), strict=True))
"""Simulated jobs by kind (dense, mixture of experts, long context, FSDP), each on more hosts, with a batch that grows as much."""
TASKS = (*HOSTS, *PROXY_MEASURED)
"""All tasks. The smaller size of a replayed one is the same model on fewer nodes, with the table's batch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoSizes:
    """Holds a task at full size and its smaller size."""

    name: str
    full: BenchmarkTask
    small: BenchmarkTask
    proxy: Proxy


def load(name: str) -> TwoSizes:
    """Return a task by name; raises InputError for an unknown one."""
    names_of([name])
    return _simulated(name) if name in HOSTS else _replayed(name)


def _simulated(name: str) -> TwoSizes:
    file = catalog.find("runners", "simulated") / "jobs" / f"{name}.toml"
    usual = load_job(file)
    batch = usual.global_batch * HOSTS[name] // usual.cluster.hosts
    problem = load_job(file, settings=[f"cluster.hosts={HOSTS[name]}", f"batch.global_batch={batch}"])
    problem = dataclasses.replace(problem, proxy=ProxyChoice())
    full = BenchmarkTask(name=name, problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))
    proxy = choose(problem, full.candidates)
    simulator = Simulator.of(proxy.problem)
    small = BenchmarkTask(name=name, problem=proxy.problem, candidates=proxy.candidates, simulator=simulator)
    return TwoSizes(name=name, full=full, small=small, proxy=proxy)


def _replayed(name: str) -> TwoSizes:
    """Return a replayed task with the fewest nodes that `choose` would take, or the most that it would consider."""
    tasks = {task.name: task for task in load_suite("replay")}
    full, model = tasks[name], name.partition("-")[0]
    fewer = [f"{model}-{few}" for few in proposed_hosts(full.problem.cluster.hosts)]
    wanted = promising(full.problem, full.candidates)
    proxies = [(tasks[each], _listed_proxy(full, tasks[each])) for each in fewer]
    shares = [shown(proxy, wanted) for _, proxy in proxies]
    best = next((at for at, share in enumerate(shares) if share >= SHOWN), int(np.argmax(shares)))
    small, proxy = proxies[best]
    return TwoSizes(name=name, full=full, small=small, proxy=proxy)


def _listed_proxy(full: BenchmarkTask, small: BenchmarkTask) -> Proxy:
    """Return which rows of a smaller task's table stand for the rows of the full one."""
    columns, legal = images(full.candidates, small.problem, layers=full.problem.model.layers)
    stand_in = np.full(len(full.candidates), -1, dtype=np.intp)
    for row in np.flatnonzero(legal):
        values = {name: column[row].item() for name, column in columns.items()}
        try:
            stand_in[row] = small.candidates.index_of(
                small.problem.space.configuration({"global_batch": small.problem.global_batch, **values})
            )
        except SpaceError:  # the table lacks it
            continue
    return Proxy(problem=small.problem, candidates=small.candidates, stand_in=stand_in)


def names_of(given: Sequence[str] | None) -> Sequence[str]:
    """Return the given tasks, all by default; raises InputError for an unknown one."""
    for name in given or ():
        if name not in TASKS:
            raise InputError(f"`{name}` is not a task", hint=f"use some of {', '.join(TASKS)}")
    return given or TASKS
