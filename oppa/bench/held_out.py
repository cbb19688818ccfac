"""Fit the coefficients of `priors/` to nanotron's published runs, leaving out those of one model.

The fit is maximum a posteriori. The distributions of `priors/` are the hyper-priors, and a robust loss limits the weight of runs that no
coefficient explains. The fit leaves stalls out of the prediction.

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
from oppa.cost.coefficients import Belief, Coefficients, load_beliefs
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.step_time import step_time
from oppa.cost.workload import Workload

NOISE = 0.1
Model = Callable[[Workload, Coefficients], Tensor]


@functools.cache
def held_out_beliefs(model: str) -> Mapping[str, Belief]:
    """Return the distributions of `priors/`, with medians fitted to the runs of all models but one.

    Raises:
        EnvironmentLackingError: the data are missing.
    """
    rows = published.nanotron_rows()
    runs = rows[rows["status"] == published.RAN].reset_index(drop=True)
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


def without_stalls(work: Workload) -> Workload:
    """Return the same runs with a stall probability of 0."""
    never = torch.zeros_like(work.machine.stall_probability_per_host)
    return dataclasses.replace(work, machine=dataclasses.replace(work.machine, stall_probability_per_host=never))
