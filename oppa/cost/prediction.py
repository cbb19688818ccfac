"""Predict the step time and the memory of a workload from the coefficients' medians, without measurements."""

import numpy as np
import pandas as pd
import torch

from oppa.cost.coefficients import Coefficients, load_beliefs, medians
from oppa.cost.hardware import Hardware, load_hardware
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, illegal, workload_of_rows
from oppa.cost.step_time import step_time
from oppa.cost.workload import Workload
from oppa.errors import InputError

COLUMNS = ("predicted_step_time_s", "predicted_tok_s", "predicted_memory_bytes", "fits")


def prior_beliefs(hardware: Hardware) -> Coefficients:
    """Return the medians of all coefficients on a device."""
    return {**medians(load_beliefs("step_time", hardware.coefficients)), **medians(load_beliefs("memory", hardware.coefficients))}


def predict(work: Workload, c: Coefficients) -> pd.DataFrame:
    """Return the predictions as the columns COLUMNS, one row per configuration.

    They are seconds per step, tokens per second, bytes on the fullest device, and a flag that these bytes fit.
    """
    with torch.inference_mode():
        seconds, needed = step_time(work, c), memory(work, c)
        tokens = work.layout.dp * work.layout.num_microbatches * work.tokens
        columns = (seconds, tokens / seconds, needed.round().long(), needed <= work.machine.usable_bytes)
        return pd.DataFrame({name: column.numpy() for name, column in zip(COLUMNS, columns, strict=True)})


def predict_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns COLUMNS appended; these are missing values in a row that no framework can run.

    Raises:
        InputError: a column is missing, a prediction's column exists already, or a value is invalid.
    """
    for name in COLUMNS:
        if name in rows:
            raise InputError(f"the rows have a column `{name}` already", hint="rename or remove it")
    checked = check_rows(rows)
    devices = checked["device"].mask(illegal(checked))
    answer = np.full((len(rows), len(COLUMNS)), np.nan)
    for device, positions in devices.groupby(devices).indices.items():
        answer[positions] = predict(workload_of_rows(checked.iloc[positions]), prior_beliefs(load_hardware(str(device))))
    predicted = pd.DataFrame(answer, rows.index, COLUMNS).astype({"predicted_memory_bytes": "Int64", "fits": "boolean"})
    return pd.concat([rows, predicted], axis=1)
