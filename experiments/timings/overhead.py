"""Measure a designer's step on one core: `oppa` against BoTorch and Optuna, and its posterior against BoTorch's own.

A step is the work between two trials: the designer receives one more observation and suggests the next candidate. All designers receive
the same observations, one by one and in turn. The first step is not timed.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import torch

from experiments.timings.interleaved import compared, spread
from oppa import catalog
from oppa.problem.candidates import Candidates
from oppa.problem.cluster import Cluster
from oppa.problem.presets import PRESETS
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import narrow, read_space
from oppa.problem.training import Limits, Training
from oppa.report.record import Section
from oppa.tuning.designer import Designer, Observation
from oppa.tuning.designers import make_designer
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate.gaussian_process import GaussianProcess

OURS = "oppa"
DESIGNERS = {OURS: "oppa", "vanilla-bo": "BoTorch (`vanilla-bo`)", "tpe": "Optuna's TPE", "optuna-gp": "Optuna's GP"}
OBSERVATIONS = (10, 50, 100, 300)
USUAL_BUCKETS = {"dp_bucket_mb": 25, "zero_bucket_mb": 24}
USUAL_OVERLAPS = {"overlap_p2p": True, "overlap_zero_comm": True, "overlap_zero_allgather": False}
SIZES: Mapping[int, Mapping[str, object]] = {
    1_000: {**USUAL_BUCKETS, **USUAL_OVERLAPS, "recompute": "none"},
    10_000: {"zero_bucket_mb": USUAL_BUCKETS["zero_bucket_mb"]},
    100_000: {},
}
"""Approximate number of candidates, and the fixed parameters that leave this number."""
BUDGET_S = 15.0
"""Seconds of steps in total, after which a designer takes no more steps."""
CHUNK = 512
"""Candidates per call of BoTorch's posterior, each as its own batch: its fastest form. Joint covariances take half as long again."""


def overhead(repeats: int, tasks: Sequence[str]) -> list[Section]:
    """Return seconds per step of all designers, of a cold and a warm step of `oppa`, and of the posterior on both paths.

    Each task is a number of candidates; the last two use the largest only.
    """
    sizes = [int(task) for task in tasks]
    with _one_core():
        return [step_section(repeats, sizes=sizes), *_largest(repeats, max(sizes))]


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Run on one core inside the context: `oppa` would take all of them for many candidates, and the others one."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def step_section(
    repeats: int, *, sizes: Sequence[int] = tuple(SIZES), counts: Sequence[int] = OBSERVATIONS, designers: Sequence[str] = tuple(DESIGNERS)
) -> Section:
    """Return a table with a row for each number of candidates, each number of observations and each designer."""
    rows = []
    for size in sizes:
        problem = problem_of(size)
        candidates = problem.candidates()
        designer = Oppa(problem, candidates, seed=0)
        for count in counts:
            seen = observations(designer, count - 1 + repeats, seed=count)
            designers_made = {name: make_designer(name, problem, candidates, seed=0) for name in designers}
            rows += _rows(candidates, count, steps(designers_made, seen, given=count - 1))
    text = (
        f"Each designer takes {repeats} steps after this number of observations, or fewer if they take over {BUDGET_S:g} s. Ratios are "
        "taken step by step. TPE evaluates only a few sampled candidates. Optuna's times include the search for the candidate nearest to "
        "its suggestion."
    )
    columns = (">candidates", ">observations", "designer", ">steps", "seconds: median (min - max)", "times oppa's")
    return Section(title="A step of each designer", text=text, columns=columns, rows=rows)


def steps(designers: Mapping[str, Designer], seen: Sequence[Observation], given: int) -> dict[str, list[float]]:
    """Return the seconds of each designer's steps, taken in turn.

    Args:
        seen: Observations for every designer.
        given: Number of observations that designers receive together; the others follow one by one.
    """
    taken = {each.candidate for each in seen}
    for designer in designers.values():
        _seconds(designer, seen[:given], taken)
    seconds: dict[str, list[float]] = {name: [] for name in designers}
    for turn, observation in enumerate(seen[given:]):
        for name in list(designers)[:: 1 if turn % 2 == 0 else -1]:
            if sum(seconds[name]) < BUDGET_S:
                seconds[name].append(_seconds(designers[name], [observation], taken))
    return seconds


def problem_of(size: int) -> Problem:
    """Return the problem of Llama-2 13B on 64 A100 in ColossalAI's space, narrowed to about `size` candidates, one of SIZES."""
    model, training = PRESETS["llama-2-13b"], Training(precision="bf16")
    cluster = Cluster(hosts=8, devices_per_host=8, device="A100-80GB", memory_limit_bytes=80 << 30)
    facts = facts_of(model, 1024, cluster, training)
    space = read_space((catalog.root() / "search_spaces" / "colossalai.toml").read_text(), name="colossalai", facts=facts)
    return Problem(
        name="step",
        stated_model=model,
        global_batch=1024,
        cluster=cluster,
        runner=Path("colossalai"),
        training=training,
        space=narrow(space, SIZES[size], honoured=space.names, runner="colossalai"),
        limits=Limits(),
    )


def observations(designer: Oppa, count: int, seed: int) -> list[Observation]:
    """Return simulated observations of random candidates, with a throughput that deviates from the cost model by 10% (one sigma)."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(designer.log_rate.points), count, replace=False)
    rate, slack = designer.log_rate.at(torch.from_numpy(rows)), designer.log_slack.at(torch.from_numpy(rows))
    off = 0.1 * rng.standard_normal(len(rows))
    return [
        Observation(
            candidate=int(row),
            outcome="out_of_memory" if over > 0 else "completed",
            log_steps_per_s=None if over > 0 else speed + error,
            log_variance=1e-4,
            memory_bytes=None if over > 0 else round(designer.limits.reported * math.exp(over)),
        )
        for row, speed, over, error in zip(rows, rate.mean.tolist(), slack.mean.tolist(), off, strict=True)
    ]


def _rows(candidates: Candidates, count: int, seconds: Mapping[str, Sequence[float]]) -> list[tuple[str, ...]]:
    ours = seconds.get(OURS, ())
    return [
        (
            f"{len(candidates):,}",
            str(count),
            DESIGNERS[name],
            str(len(each)),
            spread(each),
            spread([theirs / own for own, theirs in zip(ours, each, strict=False)]) if name != OURS and ours else "",
        )
        for name, each in seconds.items()
    ]


def _largest(repeats: int, size: int) -> list[Section]:
    """Measure a cold and a warm step with the most candidates and observations, and the posterior that such a step computes."""
    problem = problem_of(size)
    candidates = problem.candidates()
    cold, warm, designer = [], [], Oppa(problem, candidates, seed=0)
    for repeat in range(repeats):
        designer = Oppa(problem, candidates, seed=0)
        seen = observations(designer, max(OBSERVATIONS) + 1, seed=repeat)
        taken = {each.candidate for each in seen}
        cold.append(_seconds(designer, seen[:-1], taken))
        warm.append(_seconds(designer, seen[-1:], taken))
    rows = [("cold: the first step", spread(cold)), ("warm: one more observation", spread(warm))]
    text = f"{max(OBSERVATIONS)} observations, {len(candidates):,} candidates, {repeats} sets of observations."
    step = Section(title="A step of oppa, cold and warm", text=text, columns=("step", "seconds: median (min - max)"), rows=rows)
    return [step, _against_stock(designer.log_rate, max(3, repeats // 2))]


def _against_stock(process: GaussianProcess, repeats: int) -> Section:
    rows = torch.arange(len(process.points))
    process.at(rows[:1])  # so that neither path is timed with the linearisation

    def ours() -> float:
        start = time.perf_counter()
        process.at(rows)
        return time.perf_counter() - start

    def theirs() -> float:
        inputs = process.inputs(rows)
        start = time.perf_counter()
        with torch.no_grad():
            for chunk in inputs.split(CHUNK):
                posterior = process.model.posterior(chunk[:, None, :])
                _ = posterior.mean, posterior.variance
        return time.perf_counter() - start

    names = ("oppa, s", "BoTorch, s", "BoTorch / oppa")
    figures, ratio = compared(ours, theirs, repeats, names=names, by=lambda own, stock: stock / own)
    text = (
        f"Both compute mean and variance of one model at {len(rows):,} candidates given {len(process.noise)} observations, in turn. "
        f"oppa is {ratio:.0f} times faster."
    )
    return Section(title="Posterior", text=text, columns=("path", "median (min - max)"), rows=figures)


def _seconds(designer: Designer, seen: Sequence[Observation], taken: Set[int]) -> float:
    start = time.perf_counter()
    designer.update(seen)
    designer.suggest(taken)
    return time.perf_counter() - start
