"""Fit coefficients of the cost model to measured runs: maximum a posteriori, with the distributions of `priors/` as hyper-priors.

A robust loss limits the weight of runs that no coefficient explains. Runs of several devices share one fit. A device may have medians and
spreads of its own, and the fit moves all medians by the same number of spreads.

Notation (n runs, k coefficients):
    place     (log coefficient - log median) / spread, the same for all devices    (k,)
    weight    weight of a run                                                      (n,)
    loss      sum of weight * log(1 + (log(predicted / measured) / NOISE)^2) over the runs, + |place|^2 / 2
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from oppa.cost.beliefs import Beliefs, beliefs_of
from oppa.cost.coefficients import Belief, Coefficients
from oppa.cost.framework import load_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.workload import Workload

NOISE = 0.1
CostFunction = Callable[[Workload, Coefficients], Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedRuns:
    """Holds measured runs on one kind of device, and the distributions of the coefficients there."""

    work: Workload
    measured: Tensor
    """Seconds or bytes, shape (n,)."""
    weight: Tensor
    beliefs: Mapping[str, Belief]


def fit(model: CostFunction, work: Workload, measured: pd.Series, beliefs: Mapping[str, Belief]) -> Coefficients:
    """Return the maximum a posteriori coefficients of runs that count equally."""
    runs = FittedRuns(work=work, measured=torch.tensor(measured.to_numpy()), weight=torch.ones(len(measured)), beliefs=beliefs)
    return coefficients_at(fit_place(model, [runs]), beliefs)


def fit_place(model: CostFunction, parts: Sequence[FittedRuns]) -> Tensor:
    """Return the maximum a posteriori `place` of runs on several devices, shape (k,)."""
    place = torch.zeros(len(parts[0].beliefs), dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.LBFGS([place], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = (place**2).sum() / 2
        for part in parts:
            residual = (model(part.work, coefficients_at(place, part.beliefs)) / part.measured).log() / NOISE
            total = total + (part.weight * (residual**2).log1p()).sum()
        total.backward()
        return total

    optimizer.step(loss)
    return place.detach()


def coefficients_at(place: Tensor, beliefs: Mapping[str, Belief]) -> Coefficients:
    """Return the coefficients that are `place` spreads from their medians."""
    center = torch.tensor([belief.median for belief in beliefs.values()], dtype=torch.float64).log()
    spread = torch.tensor([belief.spread for belief in beliefs.values()], dtype=torch.float64)
    return dict(zip(beliefs, (center + spread * place).exp(), strict=True))


def group_beliefs(device: str, framework: str, *, own: bool = True) -> tuple[Beliefs, Beliefs]:
    """Return the coefficients of step time and of memory on a device under a framework.

    Args:
        own: Use the framework's own coefficients; otherwise the general ones, with the facts of its file.
    """
    known = load_framework(framework)
    return beliefs_of(load_hardware(device), known if own else dataclasses.replace(known, coefficients={}))
