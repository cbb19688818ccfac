"""How long a designer thinks: one step of `oppa` over a hundred thousand candidates, and its posterior against BoTorch's own."""

import math
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from oppa import catalog
from oppa.bench.paired import in_turn, spread
from oppa.problem.cluster import Cluster
from oppa.problem.presets import PRESETS
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Limits, Training
from oppa.report.record import Section
from oppa.tuning.designer import Observation
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate.process import Process

OBSERVATIONS, CANDIDATES = 100, 100_000
CHUNK = 512
"""Candidates per call of the stock path, each as a batch of its own: the fastest of its forms; joint covariances take ten times as long."""


def designer_step(repeats: int) -> list[Section]:
    """Seconds of a step, cold and warm, and of the posterior by both paths in turn; all on one core."""
    torch.set_num_threads(1)
    problem = _problem()
    candidates = problem.candidates()
    cold, warm, designer = [], [], Oppa(problem, candidates, seed=0)
    for repeat in range(repeats):
        designer = Oppa(problem, candidates, seed=0)
        seen = _observations(designer, seed=repeat)
        taken = {each.candidate for each in seen}
        cold.append(_seconds(designer, seen[:-1], taken))
        warm.append(_seconds(designer, seen[-1:], taken))
    rows = [("cold: fitted from the priors", spread(cold)), ("warm: one more observation", spread(warm))]
    text = f"{OBSERVATIONS} observations, {len(candidates):,} candidates, one core, {repeats} repeats."
    step = Section(title="One step of the designer", text=text, columns=("step", "seconds: median (min - max)"), rows=rows)
    return [step, _against_stock(designer.log_rate, max(3, repeats // 2))]


def _against_stock(process: Process, repeats: int) -> Section:
    rows = torch.arange(CANDIDATES).clamp_max(len(process.points) - 1)
    process.at(rows[:1])  # linearised beforehand, for both

    def ours() -> float:
        start = time.perf_counter()
        process.at(rows)
        return time.perf_counter() - start

    def theirs() -> float:
        inputs = process.inputs(rows)
        start = time.perf_counter()
        with torch.no_grad():
            for chunk in inputs.split(CHUNK):
                belief = process.model.posterior(chunk[:, None, :])
                _ = belief.mean, belief.variance
        return time.perf_counter() - start

    ours(), theirs()
    pairs = in_turn(ours, theirs, repeats)
    ratios = [stock / own for own, stock in pairs]
    figures = [
        ("oppa, s", spread([own for own, _ in pairs])),
        ("BoTorch, s", spread([stock for _, stock in pairs])),
        ("BoTorch / oppa", spread(ratios)),
    ]
    text = (
        f"Posterior mean and variance at {CANDIDATES:,} candidates given {OBSERVATIONS} observations, in turn: "
        f"{statistics.median(ratios):.0f} times faster."
    )
    return Section(title="Posterior", text=text, columns=("path", "median (min - max)"), rows=figures)


def _problem() -> Problem:
    """Llama-2 13B on 64 A100 under ColossalAI's space, with as many values of the buckets as give CANDIDATES."""
    model, training = PRESETS["llama-2-13b"], Training(precision="bf16")
    cluster = Cluster(hosts=8, devices_per_host=8, device="A100-80GB", memory_limit_bytes=80 << 30)
    facts = facts_of(model, 1024, cluster, training)
    space = read_space((catalog.root() / "search_spaces" / "colossalai.toml").read_text(), name="colossalai", facts=facts)
    return Problem(
        name="step",
        model=model,
        global_batch=1024,
        cluster=cluster,
        runner=Path("colossalai"),
        training=training,
        space=space,
        limits=Limits(),
    )


def _observations(designer: Oppa, seed: int) -> list[Observation]:
    """What trials of random candidates would measure if the cost model were right to 10%."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(designer.log_rate.points), OBSERVATIONS + 1, replace=False)
    rate, slack = designer.log_rate.at(torch.from_numpy(rows)), designer.log_slack.at(torch.from_numpy(rows))
    off = 0.1 * rng.standard_normal(len(rows))
    return [
        Observation(
            candidate=int(row),
            outcome="out_of_memory" if over > 0 else "completed",
            log_steps_per_s=None if over > 0 else speed + error,
            log_variance=1e-4,
            memory_bytes=None if over > 0 else round(designer.limit_bytes * math.exp(over)),
        )
        for row, speed, over, error in zip(rows, rate.mean.tolist(), slack.mean.tolist(), off, strict=True)
    ]


def _seconds(designer: Oppa, seen: list[Observation], taken: set[int]) -> float:
    start = time.perf_counter()
    designer.update(seen)
    designer.suggest(taken)
    return time.perf_counter() - start
