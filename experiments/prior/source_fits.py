"""Fit the coefficients of `priors/` to the published runs of several sources, and predict with the fit.

A run's weight is 1 / sqrt(n) among the n runs of its source. A source thus counts as much as the square root of its runs. The runs of a
source share their framework, machine and way of measuring, and their errors.
"""

import dataclasses
from collections.abc import Collection

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments import published
from oppa.bench.fitting import CostFunction, FittedRuns, coefficients_at, fit_place, group_beliefs
from oppa.cost.beliefs import Beliefs
from oppa.cost.coefficients import load_beliefs
from oppa.cost.memory import memory
from oppa.cost.prediction import predict
from oppa.cost.rows import by_kind, check_rows, illegal, workload_of_rows
from oppa.cost.step_time import step_time, without_stalls


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceFit:
    """Holds fitted coefficients as distances from the medians in spreads, for time and for memory."""

    time: Tensor
    memory: Tensor

    def beliefs(self, device: str, framework: str, *, own: bool) -> tuple[Beliefs, Beliefs]:
        """Return the coefficients of step time and of memory on a device, with the fitted medians."""
        time, memory = group_beliefs(device, framework, own=own)
        return _moved(time, self.time), _moved(memory, self.memory)


def _moved(beliefs: Beliefs, place: Tensor) -> Beliefs:
    medians = coefficients_at(place, beliefs)
    return {name: dataclasses.replace(belief, median=float(medians[name])) for name, belief in beliefs.items()}


def fit_sources(rows: pd.DataFrame, sources: Collection[str]) -> SourceFit:
    """Return the fit to the rows of some sources; raises ValueError for a source to which nothing may be fitted."""
    if unfit := [name for name in sources if not published.SOURCES[name].fitted]:
        raise ValueError(f"no coefficient is fitted to {unfit}")
    return fit_rows(rows[rows["source"].isin(list(sources))], balanced=True)


def fit_rows(rows: pd.DataFrame, *, balanced: bool = False) -> SourceFit:
    """Return the fit to the rows that ran; a quantity that none of them has measured keeps its medians.

    Args:
        balanced: The weight of a run is 1 / sqrt(n), not 1.
    """
    checked = check_rows(rows)
    ran = rows["status"].eq(published.RAN) & ~illegal(checked)
    return SourceFit(
        time=_place(step_time, rows[ran], checked[ran], "step_time", "step_time_s", balanced=balanced),
        memory=_place(memory, rows[ran], checked[ran], "memory", "memory_bytes", balanced=balanced),
    )


def predict_with(rows: pd.DataFrame, fit: SourceFit, *, own: bool = True) -> pd.DataFrame:
    """Return the rows with the columns of `predict_rows`, predicted from fitted coefficients.

    Args:
        own: Use the coefficients of the frameworks' files, which may have been fitted to these very rows.
    """
    checked = check_rows(rows)
    possible = np.flatnonzero(~illegal(checked))
    parts = []
    for device, framework, group in by_kind(checked.iloc[possible]):
        positions = possible[group]
        predicted = predict(workload_of_rows(checked.iloc[positions]), *fit.beliefs(device, framework, own=own))
        parts.append(predicted.set_axis(rows.index[positions]))
    predicted = pd.concat(parts).reindex(rows.index).astype({"predicted_memory_bytes": "Float64", "fits": "boolean"})
    return pd.concat([rows, predicted], axis=1)


def _place(model: CostFunction, runs: pd.DataFrame, checked: pd.DataFrame, name: str, column: str, *, balanced: bool) -> Tensor:
    known = runs[column].notna()
    if not known.any():
        return torch.zeros(len(load_beliefs(name)), dtype=torch.float64)
    counts = runs[known].groupby("source")["source"].transform("size")
    weights = counts.astype(float) ** (-0.5 if balanced else 0)
    parts = []
    for device, framework, group in by_kind(checked[known]):
        part, (time, size) = checked[known].iloc[group], group_beliefs(device, framework)
        work = workload_of_rows(part)
        parts.append(
            FittedRuns(
                work=without_stalls(work) if model is step_time else work,
                measured=torch.tensor(runs.loc[part.index, column].to_numpy(dtype=np.float64)),
                weight=torch.tensor(weights[part.index].to_numpy()),
                beliefs=time if model is step_time else size,
            )
        )
    return fit_place(model, parts)
