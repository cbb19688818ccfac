"""Predict the step time and the memory of a workload from the coefficients' distributions, without measurements.

The medians give the predictions. Their spreads give intervals: to first order, the logarithm of a prediction is normal, with the variance

    sum over coefficients of (d log prediction / d log coefficient * spread)^2 + residual^2
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oppa.cost.beliefs import MEMORY_RESIDUAL, TIME_RESIDUAL, Beliefs, beliefs_of
from oppa.cost.framework import load_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.memory import memory
from oppa.cost.rows import by_kind, check_rows, illegal, workload_of_rows
from oppa.cost.step_time import stalled_probability, stalled_time, step_time
from oppa.cost.workload import Formula, Workload
from oppa.errors import InputError

COLUMNS = (
    "predicted_step_time_s",
    "predicted_tok_s",
    "predicted_memory_bytes",
    "fits",
    "predicted_step_time_low_s",
    "predicted_step_time_high_s",
    "predicted_memory_low_bytes",
    "predicted_memory_high_bytes",
    "probability_fits",
)
NINETY_PERCENT = 1.645
"""Standard deviations from the median to either end of an interval that holds 90% of the probability."""
MOST_BYTES = 2.0**62
"""Largest number of bytes that a prediction states, which an int64 holds."""
CHUNK = 8192
"""Rows per chunk, which bounds the memory that the slopes take."""


def predict(work: Workload, time: Beliefs, size: Beliefs) -> pd.DataFrame:
    """Return the predictions as the columns COLUMNS, one row per configuration.

    They are seconds per step, tokens per second and bytes on the fullest device, each with the ends of its 90% interval. A flag states that
    these bytes fit, and a probability how surely.
    """
    chunks = [work.take(slice(start, start + CHUNK)) for start in range(0, len(work), CHUNK)]
    return pd.concat([_predict(chunk, time, size) for chunk in chunks], ignore_index=True)


def _predict(work: Workload, time: Beliefs, size: Beliefs) -> pd.DataFrame:
    seconds, time_stddev = _with_stddev(step_time, work, time, TIME_RESIDUAL)
    time_stddev = (time_stddev**2 + _stall_variance(work, seconds)).sqrt()
    needed, size_stddev = _with_stddev(memory, work, size, MEMORY_RESIDUAL)
    tokens = work.replicas * work.layout.num_microbatches * work.tokens
    slower, more = (NINETY_PERCENT * time_stddev).exp(), (NINETY_PERCENT * size_stddev).exp()
    usable = work.machine.usable_bytes
    probability = torch.special.ndtr((usable / needed).log() / size_stddev)
    whole, least, most = (each.clamp(max=MOST_BYTES).round().long() for each in (needed, needed / more, needed * more))
    middle = seconds, tokens / seconds, whole, needed <= usable
    columns = *middle, seconds / slower, seconds * slower, least, most, probability
    return pd.DataFrame({name: column.numpy() for name, column in zip(COLUMNS, columns, strict=True)})


def _with_stddev(formula: Formula, work: Workload, beliefs: Beliefs, residual: float) -> tuple[Tensor, Tensor]:
    """Return the formula's value and the standard deviation of its logarithm, shape (n,) each.

    Every row has its own copy of the coefficients, so that one backward pass gives the slopes of all rows.
    """
    c = {name: torch.full((len(work),), belief.median, dtype=torch.float64, requires_grad=True) for name, belief in beliefs.items()}
    value = formula(work, c)
    slopes = torch.autograd.grad(value.log().sum(), list(c.values()), allow_unused=True)
    variance = torch.full((len(work),), residual**2, dtype=torch.float64)
    for slope, belief in zip(slopes, beliefs.values(), strict=True):
        if slope is not None:
            variance += (slope * belief.median * belief.spread) ** 2
    return value.detach(), variance.sqrt()


def _stall_variance(work: Workload, seconds: Tensor) -> Tensor:
    """Return the variance of a step's logarithm because it stalls or does not, shape (n,)."""
    probability = stalled_probability(work)
    return probability * (1 - probability) * (stalled_time(seconds, work) / seconds).log() ** 2


def predict_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns COLUMNS appended; these are missing values in a row that no framework can run.

    Raises:
        InputError: a column is missing, a prediction's column exists already, or a value is invalid.
    """
    for name in COLUMNS:
        if name in rows:
            raise InputError(f"the rows have a column `{name}` already", hint="rename or remove it")
    checked = check_rows(rows)
    possible = np.flatnonzero(~illegal(checked))
    answer = np.full((len(rows), len(COLUMNS)), math.nan)
    for device, framework, group in by_kind(checked.iloc[possible]):
        positions = possible[group]
        beliefs = beliefs_of(load_hardware(device), load_framework(framework))
        answer[positions] = predict(workload_of_rows(checked.iloc[positions]), *beliefs)
    whole = {name: "Int64" for name in COLUMNS if name.endswith("_bytes")}
    predicted = pd.DataFrame(answer, rows.index, COLUMNS).astype({**whole, "fits": "boolean"})
    return pd.concat([rows, predicted], axis=1)
