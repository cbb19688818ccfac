"""Run a target's search from the coefficients of other studies, or from none.

Each arm starts from other studies. Those of sources are searches of their tasks by `oppa`. The misleading study claims another framework.
Its trials are computed by the cost model itself, with coefficients MISLED spreads from their medians, so nothing shows that it is wrong. Of
DRAWS such distortions of step times, it has the one that ranks the target's best configuration lowest.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.transfer.cases import CASES, task
from oppa.bench.run_designer import TrialRecord, observation, run_designer
from oppa.bench.runs import SearchRun
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.tuning.designer import Observation
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.likeness import Distance
from oppa.tuning.stopping import make_rule
from oppa.tuning.surrogate.cost_model import MeanFunction
from oppa.tuning.transfer import ALIKE, StudyLesson, combined, lesson

TRIALS = 15
"""Trials of every search, those of the sources included."""
ELDER = 1000
"""Distance between the seed of a target's trials and that of its sources' trials."""
MISLED = 2.0
DRAWS, RANKED = 32, 500
"""Distortions that are drawn, and random configurations among which each ranks the best one."""
VARIANCE = 1e-4
"""Variance of the logarithm of a throughput in the misleading study."""
OTHER_FRAMEWORK = "deepspeed"

NONE, ONE, SEVERAL, MISLEADING, MIXED = "none", "one", "several", "misleading", "several and misleading"
ONE_ALIKE, MISLEADING_ALIKE = "one, as if alike", "misleading, as if alike"
ARMS: Mapping[str, Callable[[str, int], Sequence[StudyLesson]]] = {
    NONE: lambda target, seed: (),
    ONE: lambda target, seed: _learned(target, seed)[:1],
    SEVERAL: lambda target, seed: _learned(target, seed),
    MISLEADING: lambda target, seed: [_misleading(target, seed)],
    MIXED: lambda target, seed: [*_learned(target, seed), _misleading(target, seed)],
    ONE_ALIKE: lambda target, seed: [_as_if_alike(each) for each in _learned(target, seed)[:1]],
    MISLEADING_ALIKE: lambda target, seed: [_as_if_alike(_misleading(target, seed))],
}
"""Studies that a search starts from, by the arm's name; those as if alike are taken whole, as one study was before likeness counted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferRun:
    """Holds the run of an arm, and the weight of each study that it started from."""

    run: SearchRun
    weights: Mapping[str, float]


def run_target(target: str, seed: int) -> list[TransferRun]:
    """Return the runs of all arms on a target; a source whose trials contradict the cost model gives nothing, as in a real search."""
    return [_run(task(target), arm, studies(target, seed), seed) for arm, studies in ARMS.items()]


def _run(target: BenchmarkTask, arm: str, lessons: Sequence[StudyLesson], seed: int) -> TransferRun:
    prior = combined(target.problem, lessons) if lessons else None
    designer = Oppa(target.problem, target.candidates, seed=seed, beliefs=prior.beliefs if prior else None)
    records = _search(target, designer, seed)
    weights = {each.name: each.weight for each in prior.used} if prior else {}
    return TransferRun(run=SearchRun.of(target, arm, seed, "", records), weights=weights)


def _search(target: BenchmarkTask, designer: Oppa, seed: int) -> list[TrialRecord]:
    return run_designer(target, designer, make_rule("sure", target.problem.limits), seed=seed, trials=TRIALS)


def _learned(target: str, seed: int) -> list[StudyLesson]:
    """Return what the target's sources learned, without those that contradict the cost model."""
    found = [_study(name, seed) for name in CASES[target].sources]
    return [_at(each, task(name).problem, task(target).problem) for name, each in zip(CASES[target].sources, found, strict=True) if each]


@functools.cache
def _study(name: str, seed: int) -> StudyLesson | None:
    source = task(name)
    records = _search(source, Oppa(source.problem, source.candidates, seed=ELDER + seed), ELDER + seed)
    designer = Oppa(source.problem, source.candidates, seed=0)
    designer.update([observation(each.candidate, each.result, None) for each in records])
    return lesson(designer, name) if designer.averaged_rate.likeliest is designer.log_rate else None


def _misleading(target: str, seed: int) -> StudyLesson:
    """Return what a study of another framework learns from trials with distorted coefficients, in a task of the target's own size."""
    known = task(target)
    elsewhere = dataclasses.replace(known.problem, space=dataclasses.replace(known.problem.space, framework=OTHER_FRAMEWORK))
    random, designer = stream(seed, f"misleading {target}"), Oppa(elsewhere, known.candidates, seed=0)
    chosen = random.choice(len(known.candidates), min(TRIALS, len(known.candidates)), replace=False)
    rate, memory = designer.log_rate.cost, designer.log_slack.cost
    log_rate = rate.at(_worst_shift(rate, known, random), torch.from_numpy(chosen)).tolist()
    slack = memory.at(_shift(memory, random), torch.from_numpy(chosen)).tolist()
    invented = zip(chosen.tolist(), log_rate, slack, strict=True)
    designer.update([_invented(*each, limit_bytes=designer.limits.reported) for each in invented])
    return _at(lesson(designer, "misleading"), elsewhere, known.problem)


def _shift(cost: MeanFunction, random: np.random.Generator) -> Tensor:
    """Return a shift of every coefficient by MISLED spreads, up or down by chance."""
    return torch.from_numpy(random.choice([-MISLED, MISLED], len(cost.names)))


def _worst_shift(cost: MeanFunction, known: BenchmarkTask, random: np.random.Generator) -> Tensor:
    """Return the one of DRAWS shifts that predicts most configurations to be faster than the best."""
    best, count = int(np.nanargmax(known.steps_per_s)), len(known.candidates)
    rows = torch.from_numpy(np.append(random.choice(count, min(RANKED, count), replace=False), best))

    def faster(shift: Tensor) -> int:
        predicted = cost.at(shift, rows)
        return int((predicted > predicted[-1]).sum())

    return max((_shift(cost, random) for _ in range(DRAWS)), key=faster)


def _invented(candidate: int, log_rate: float, slack: float, *, limit_bytes: int) -> Observation:
    fits = slack <= 0
    return Observation(
        candidate=candidate,
        outcome="completed" if fits else "out_of_memory",
        log_steps_per_s=log_rate if fits else None,
        log_variance=VARIANCE if fits else None,
        memory_bytes=round(limit_bytes * math.exp(slack)) if fits else None,
    )


def _at(known: StudyLesson, theirs: Problem, ours: Problem) -> StudyLesson:
    return dataclasses.replace(known, distance=Distance.between(theirs, ours))


def _as_if_alike(known: StudyLesson) -> StudyLesson:
    return dataclasses.replace(known, distance=ALIKE)
