"""Fit the coefficients of `priors/` to nanotron's published runs, and test how well a fit to one model predicts another.

The fit is maximum a posteriori. The distributions of `priors/` are the hyper-priors, and a robust loss limits the weight of runs that no
coefficient explains. The fit leaves stalls out of the prediction; they are counted afterwards.

Notation (n runs, k coefficients):
    place    (log coefficient - log median) / spread      (k,)
    loss     sum of log(1 + (log(predicted / measured) / NOISE)^2) over the runs, + |place|^2 / 2
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import pandas as pd
import torch
from torch import Tensor

from oppa.bench import published
from oppa.bench.judgement import RAN, task_table
from oppa.bench.stalls import stall_section, without_stalls
from oppa.cost.coefficients import Belief, Coefficients, load_beliefs, medians
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.step_time import step_time
from oppa.cost.workload import Workload
from oppa.report.record import Section

NOISE = 0.1
Model = Callable[[Workload, Coefficients], Tensor]


def calibrate() -> list[Section]:
    """Return fitted coefficients, held-out errors and stalls for nanotron's runs; raises EnvironmentLackingError if the data are absent."""
    rows = published.nanotron_rows()
    runs = rows[rows["status"] == RAN].reset_index(drop=True)
    work = workload_of_rows(check_rows(runs))
    subsets = {"all": runs.index, "1B": runs.index[runs["model"] == "1B"], "8B": runs.index[runs["model"] == "8B"]}
    time_beliefs, memory_beliefs = load_beliefs("step_time"), load_beliefs("memory")
    times = {name: fit(step_time, without_stalls(work), runs["step_time_s"], time_beliefs, chosen) for name, chosen in subsets.items()}
    sizes = {name: fit(memory, work, runs["memory_bytes"], memory_beliefs, chosen) for name, chosen in subsets.items()}
    return [
        _coefficients("Step time", time_beliefs, times),
        _coefficients("Memory", memory_beliefs, sizes),
        _held_out(runs, work, {"priors/": medians(time_beliefs), **times}, {"priors/": medians(memory_beliefs), **sizes}),
        stall_section(runs, work, times["all"]),
    ]


@functools.cache
def held_out_beliefs(model: str) -> Mapping[str, Belief]:
    """Return the distributions of `priors/`, with medians fitted to the runs of all models but one.

    Raises:
        EnvironmentLackingError: the data are missing.
    """
    rows = published.nanotron_rows()
    runs = rows[rows["status"] == RAN].reset_index(drop=True)
    work, others = workload_of_rows(check_rows(runs)), runs.index[runs["model"] != model]
    time_beliefs, memory_beliefs = load_beliefs("step_time"), load_beliefs("memory")
    times = fit(step_time, without_stalls(work), runs["step_time_s"], time_beliefs, others)
    sizes = fit(memory, work, runs["memory_bytes"], memory_beliefs, others)
    beliefs = {**time_beliefs, **memory_beliefs}
    return {name: dataclasses.replace(beliefs[name], median=float(median)) for name, median in {**times, **sizes}.items()}


def fit(model: Model, work: Workload, measured: pd.Series, beliefs: Mapping[str, Belief], rows: pd.Index) -> Coefficients:
    """Return the maximum a posteriori coefficients, given the runs in `rows`."""
    chosen = torch.tensor(rows.to_numpy())
    some, target = work.take(chosen), torch.tensor(measured.to_numpy())[chosen].log()
    center = torch.tensor([math.log(belief.median) for belief in beliefs.values()], dtype=torch.float64)
    spread = torch.tensor([belief.spread for belief in beliefs.values()], dtype=torch.float64)
    place = torch.zeros_like(center).requires_grad_()
    optimizer = torch.optim.LBFGS([place], max_iter=500, line_search_fn="strong_wolfe")

    def coefficients() -> Coefficients:
        return dict(zip(beliefs, (center + spread * place).exp(), strict=True))

    def loss() -> Tensor:
        optimizer.zero_grad()
        residual = (model(some, coefficients()).log() - target) / NOISE
        total = (residual**2).log1p().sum() + (place**2).sum() / 2
        total.backward()
        return total

    optimizer.step(loss)
    return {name: value.detach() for name, value in coefficients().items()}


def _coefficients(what: str, beliefs: Mapping[str, Belief], fitted: Mapping[str, Coefficients]) -> Section:
    rows = [
        (
            name,
            f"{belief.median:.3g} ({belief.interval[0]:.2g} - {belief.interval[1]:.2g})",
            *(f"{c[name]:.3g}" for c in fitted.values()),
            f"{math.log(fitted['all'][name] / belief.median) / belief.spread:+z.1f}",
        )
        for name, belief in beliefs.items()
    ]
    return Section(
        title=f"{what}: coefficients",
        text=f"Fitted to the {published.FILES[published.NANOTRON]}. What these runs say nothing of stays where it is believed.",
        columns=("coefficient", "priors/: median (90%)", *(f">fitted to {name}" for name in fitted), ">off by spreads"),
        rows=rows,
    )


def _held_out(runs: pd.DataFrame, work: Workload, times: Mapping[str, Coefficients], sizes: Mapping[str, Coefficients]) -> Section:
    pairs = [("priors/", "1B"), ("8B", "1B"), ("1B", "1B"), ("priors/", "8B"), ("1B", "8B"), ("8B", "8B")]
    rows = []
    for fitted, judged in pairs:
        predicted = runs.assign(
            predicted_step_time_s=step_time(work, times[fitted]).numpy(), predicted_memory_bytes=memory(work, sizes[fitted]).numpy()
        )
        middle = task_table(predicted[runs["model"] == judged]).median(numeric_only=True)
        rows.append((judged, fitted, f"{middle['spearman']:.3f}", *(f"{middle[name]:.1%}" for name in ("regret", "time", "memory"))))
    return Section(
        title="Held out: coefficients of one model, runs of the other",
        text="Medians over a model's seven cluster sizes, with stalls in the prediction; as in results/prior.",
        columns=("judged on", "fitted to", ">Spearman", ">regret", ">error of step time", ">error of memory"),
        rows=rows,
    )
