"""Let the surrogate of the designer `oppa` learn from the first trials of a task, and judge its predictions of the task's other runs.

The trials are the task's fastest runs by prediction among those predicted to fit; further ones follow if too few are. Before and after them
the same runs are judged.

Notation (n runs of a task):
    points     encoded parameters in [0, 1]: logarithms of sizes, one column for each word    (n, p)
    rest       the runs that are not among the trials
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.lib.prediction_error import error
from experiments.prior.refits import known_models
from experiments.published import RAN
from oppa.bench.fitting import group_beliefs
from oppa.cost.memory import memory
from oppa.cost.prediction import NINETY_PERCENT
from oppa.cost.rows import by_kind, check_rows, workload_of_rows
from oppa.cost.step_time import step_time
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.designers import processes
from oppa.tuning.surrogate.cost_model import CostModel
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.gaussian_process import Data, GaussianProcess

TRIALS = 3
FEWEST_RUNS = 2 * TRIALS
"""Runs of a task that is judged."""
LAYOUT = ("dp", "tp", "pp", "ep", "zero")
"""Columns that decide which ranks communicate, as in `oppa.tuning.designers.processes`."""


def trial_errors(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each task with at least FEWEST_RUNS runs, from the output of `predict_rows`.

    `time_before_trials`, `time_after_trials`, `memory_before_trials` and `memory_after_trials` are median errors over the rest.
    `time_common_factor` is that of `common_factor_error`: no learned speed of the task as a whole can do better.
    `coverage_after_trials` is the share of its step times within the 90% interval after the trials.
    """
    ran = predicted[predicted["status"].eq(RAN) & predicted["predicted_step_time_s"].notna()]
    tasks = [group for _, group in ran[known_models(ran)].groupby("task") if len(group) >= FEWEST_RUNS]
    return pd.DataFrame([_judged(task) for task in tasks])


def _judged(task: pd.DataFrame) -> dict[str, object]:
    trials, rest = _split(task)
    checked = check_rows(task.drop(columns=[name for name in task if str(name).startswith("predicted_")]))
    (device, framework, _), *_ = by_kind(checked)
    work, (time, size) = workload_of_rows(checked), group_beliefs(device, framework)
    hosts = float(work.hosts[0])
    seconds, needed = _tensor(task["step_time_s"]), _tensor(task["memory_bytes"])
    rate = GaussianProcess(
        encoded(checked),
        _layouts(checked),
        CostModel(step_time, work, time, sign=-1.0),
        layout=processes.RATE_LAYOUT,
        residual=processes.RATE_RESIDUAL,
        nugget=processes.RATE_NUGGET * math.sqrt(hosts),
    )
    room = GaussianProcess(
        encoded(checked),
        _layouts(checked),
        CostModel(memory, work, size),
        layout=processes.MEMORY_LAYOUT,
        residual=processes.MEMORY_RESIDUAL,
        nugget=processes.MEMORY_NUGGET,
    )
    times, sizes = _learned(rate, trials, -seconds.log(), TRIAL_STDDEV, rest), _learned(room, trials, needed.log(), 0.0, rest)
    off = (-seconds.log()[rest] - times.mean).abs() / torch.hypot(times.stddev, torch.tensor(TRIAL_STDDEV))
    others = task.iloc[rest.numpy()]
    return {
        "source": task["source"].iloc[0],
        "framework": task["framework"].iloc[0],
        "time_before_trials": error(others["predicted_step_time_s"], others["step_time_s"]).median(),
        "time_after_trials": error(pd.Series((-times.mean).exp().numpy(), others.index), others["step_time_s"]).median(),
        "time_common_factor": common_factor_error(others["predicted_step_time_s"], others["step_time_s"]),
        "coverage_after_trials": float((off <= NINETY_PERCENT).double().mean()),
        "memory_before_trials": error(others["predicted_memory_bytes"].astype(float), others["memory_bytes"]).median(),
        "memory_after_trials": error(pd.Series(sizes.mean.exp().numpy(), others.index), others["memory_bytes"]).median(),
    }


def common_factor_error(predicted: pd.Series, measured: pd.Series) -> float:
    """Return the least median error that is left if one factor scales all predictions.

    The median is piecewise linear in the factor, and its pieces meet where two runs have the same error.
    """
    ratios = (predicted / measured).to_numpy(dtype=np.float64)
    factors = (2 / (ratios[:, None] + ratios))[np.triu_indices(len(ratios))]
    return min(float(np.median(np.abs(factor * ratios - 1))) for factor in factors)


def _split(task: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Return the positions of the trials, and of the other runs."""
    pace = (task["predicted_step_time_s"] / (task["gbs"] * task["seq_len"])).to_numpy(dtype=np.float64)
    order = torch.from_numpy(np.lexsort((pace, ~task["fits"].eq(True).to_numpy(dtype=bool))))
    return order[:TRIALS], order[TRIALS:]


def _learned(process: GaussianProcess, trials: Tensor, target: Tensor, stddev: float, rest: Tensor) -> Normal:
    """Condition a Gaussian process on the trials that have a target, and return its predictions for `rest`."""
    seen = trials[target[trials].isfinite()]
    if len(seen):
        noise = torch.full((len(seen),), stddev**2, dtype=torch.float64)
        process.learn(Data(rows=seen, target=target[seen], noise=noise, side=torch.zeros_like(noise), odds=torch.zeros_like(noise)))
    return process.of_candidates(rest)


def encoded(checked: pd.DataFrame) -> Tensor:
    """Return checked rows as points, shape (n, p), p >= 1; a column that does not vary is left out."""
    columns = []
    for name in checked:
        column = checked[name]
        if column.nunique() < 2:
            continue
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            numbers = column.to_numpy(dtype=np.float64)
            sizes = np.log2(numbers) if (numbers > 0).all() else numbers
            columns.append((sizes - sizes.min()) / (sizes.max() - sizes.min()))
        else:
            columns += [column.eq(word).to_numpy(dtype=np.float64) for word in column.unique()]
    return torch.from_numpy(np.stack(columns or [np.zeros(len(checked))], axis=1))


def _layouts(checked: pd.DataFrame) -> Tensor:
    return torch.tensor(checked.groupby(list(LAYOUT), sort=False).ngroup().to_numpy())


def _tensor(column: pd.Series) -> Tensor:
    return torch.tensor(column.to_numpy(dtype=np.float64))
