"""Compare what the prior predicts, before any trial, with the step times and the memory of the measured table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from oppa import api
from oppa.problem.batches import over
from oppa.report.record import Section, write_texts
from oppa.table import Table
from oppa.units import GIB

NAME = "predictions.csv"
KEYS = ["global_batch", "micro_batch", "recompute"]
"""Columns that identify a configuration of the job."""
_SHOWN = ["predicted_step_time_s", "predicted_step_time_low_s", "predicted_step_time_high_s", "predicted_memory_bytes"]


def write(folder: Path, job: Path, batches: Sequence[int]) -> None:
    """Write what the prior predicts for each configuration of a job at these global batches, unless the folder has a table or the file."""
    if (folder / NAME).exists() or (folder / "table").exists():
        return
    found = api.predict(over(api.load_job(job), tuple(batches)))
    configurations = [found.candidates.configuration(int(number)).to_dict() for number in found.frame.index]
    keys = pd.DataFrame(configurations, index=found.frame.index)[KEYS]
    write_texts(folder, {NAME: keys.join(found.frame[_SHOWN]).to_csv(index=False)})


def section(folder: Path) -> Section:
    """Tabulate predictions and measurements; the text states the medians of the errors."""
    predicted = pd.read_csv(folder / NAME, keep_default_na=False).set_index(KEYS)
    rows, times, sizes = [], [], []
    for row in Table.read(folder / "table").rows:
        key = tuple(row.configuration.to_dict()[name] for name in KEYS)
        time_s, low_s, high_s, bytes_ = (float(predicted.loc[key, name]) for name in _SHOWN)
        times.append(time_s * row.steps_per_s)
        measured = "–"
        if row.memory_bytes:
            sizes.append(bytes_ / row.memory_bytes)
            measured = f"{row.memory_bytes / GIB:.2f}"
        interval = f"{low_s * 1e3:.0f} to {high_s * 1e3:.0f}"
        ratio = f"{times[-1]:.2f}"
        rows.append([*key, f"{1e3 / row.steps_per_s:.0f}", f"{time_s * 1e3:.0f}", interval, ratio, measured, f"{bytes_ / GIB:.2f}"])
    time, size = (float(np.median(ratios)) for ratios in (times, sizes))
    text = (
        "The predictions were written before the first trial. The ratio is the predicted step time over the measured one: "
        f"{time:.2f} in the median, and {size:.2f} for memory. Memory is the peak that PyTorch allocated."
    )
    columns = [*("batch", "micro-batch", "recompute"), *(">step, ms", ">predicted", ">90%", ">ratio", ">memory, GiB", ">predicted, GiB")]
    return Section(title="The prior before the first trial", text=text, columns=columns, rows=rows)
