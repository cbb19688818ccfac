"""Compare what the prior predicts, before any trial, with the step times and the memory of the measured table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    rows = []
    for each in _compared(folder):
        measured = "–" if each.memory_bytes is None else f"{each.memory_bytes / GIB:.2f}"
        interval = f"{each.low_s * 1e3:.0f} to {each.high_s * 1e3:.0f}"
        times = f"{each.measured_s * 1e3:.0f}", f"{each.predicted_s * 1e3:.0f}", interval, f"{each.time_ratio:.2f}"
        rows.append([*each.key, *times, measured, f"{each.predicted_bytes / GIB:.2f}"])
    found = to_json(folder)
    time, size = ("{1:.2f} in the median ({0:.2f} to {2:.2f})".format(*found[name]) for name in ("time_ratio", "memory_ratio"))
    text = (
        "The predictions were written before the first trial. The ratio is the predicted step time over the measured one: "
        f"{time}. That of memory, the peak that PyTorch allocated, is {size}. {found['inside']:.0%} of the measured step times lie in "
        f"the 90% interval. The predicted fastest micro-batch and recomputation are so at {found['first_picks']} of {found['batches']} "
        "batches."
    )
    columns = [*("batch", "micro-batch", "recompute"), *(">step, ms", ">predicted", ">90%", ">ratio", ">memory, GiB", ">predicted, GiB")]
    return Section(title="The prior before the first trial", text=text, columns=columns, rows=rows)


def to_json(folder: Path) -> dict[str, Any]:
    """Return what the comparison shows.

    Returns:
        `time_ratio` and `memory_ratio`, predicted over measured: least, median and largest; `inside`, the share of the step times in their
        90% interval; and `first_picks`, the number of the `batches` whose fastest row was predicted to be the fastest.
    """
    compared = _compared(folder)
    by_batch = {batch: [each for each in compared if each.key[0] == batch] for batch in {each.key[0] for each in compared}}
    right = [min(each, key=lambda row: row.predicted_s) is min(each, key=lambda row: row.measured_s) for each in by_batch.values()]
    return {
        "time_ratio": _spread([each.time_ratio for each in compared]),
        "memory_ratio": _spread([each.predicted_bytes / each.memory_bytes for each in compared if each.memory_bytes]),
        "inside": float(np.mean([each.low_s <= each.measured_s <= each.high_s for each in compared])),
        "first_picks": sum(right),
        "batches": len(right),
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [float(of(values)) for of in (np.min, np.median, np.max)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Compared:
    """Holds a row of the table and its prediction."""

    key: tuple[object, ...]
    """Values of KEYS."""
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    memory_bytes: int | None
    predicted_bytes: float

    @property
    def time_ratio(self) -> float:
        """Return the predicted step time over the measured one."""
        return self.predicted_s / self.measured_s


def _compared(folder: Path) -> list[_Compared]:
    predicted = pd.read_csv(folder / NAME, keep_default_na=False).set_index(KEYS)
    found = []
    for row in Table.read(folder / "table").rows:
        key = tuple(row.configuration.to_dict()[name] for name in KEYS)
        time_s, low_s, high_s, bytes_ = (float(predicted.loc[key, name]) for name in _SHOWN)
        found.append(
            _Compared(
                key=key,
                measured_s=1 / row.steps_per_s,
                predicted_s=time_s,
                low_s=low_s,
                high_s=high_s,
                memory_bytes=row.memory_bytes,
                predicted_bytes=bytes_,
            )
        )
    return found
