"""Define the targets of the experiment: each is a task, and the tasks whose studies its search starts from."""

import dataclasses
import functools
from collections.abc import Mapping

from oppa import catalog
from oppa.bench.declared import simulated_job
from oppa.bench.tasks import load_suite
from oppa.problem.job import load_job
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.simulator import Simulator

SIZES, MODELS, CLUSTERS = "another size", "another model", "a larger cluster"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferCase:
    """Names a target and its sources; the first source is the one study of the arm `one`."""

    kind: str
    sources: tuple[str, ...]


CASES: Mapping[str, TransferCase] = {
    "1B-8": TransferCase(kind=SIZES, sources=("8B-8", "8B-4", "8B-16")),
    "8B-4": TransferCase(kind=SIZES, sources=("1B-4", "1B-2", "1B-8")),
    "8B-16": TransferCase(kind=SIZES, sources=("1B-16", "1B-8", "1B-32")),
    "qwen2-1.5b": TransferCase(kind=MODELS, sources=("bert", "vit")),
    "moe": TransferCase(kind=MODELS, sources=("moe-16e", "llama-2-7b")),
    "copus-32b": TransferCase(kind=CLUSTERS, sources=("copus-13b", "copus-3b")),
    "1B-64": TransferCase(kind=CLUSTERS, sources=("1B-4", "1B-1", "1B-2")),
    "8B-64": TransferCase(kind=CLUSTERS, sources=("8B-4", "8B-1", "8B-2")),
}
"""Targets by the names of their tasks: of the suite `replay`, or simulated jobs."""


@functools.cache
def task(name: str) -> BenchmarkTask:
    """Return a task of the suite `replay`, or a simulated job."""
    if (file := catalog.root() / simulated_job(name)).is_file():
        problem = load_job(file)
        return BenchmarkTask(name=name, problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))
    return _replayed()[name]


@functools.cache
def _replayed() -> Mapping[str, BenchmarkTask]:
    return {each.name: each for each in load_suite("replay")}
