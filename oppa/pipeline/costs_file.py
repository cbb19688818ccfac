"""Read the profiled times of pipeline stages from a CSV file.

T_F_ms, T_B_ms, T_W_ms    times of a stage for one micro-batch: forward, inputs' gradients, weights' gradients
T_comm_ms                 time of a transfer to the next stage or back; 0 without the column. The longest counts for all, without
                          that of the last stage, which has no next one
microbatches, model       pipelines that a row applies to; any without the column
pp                        number of stages; without the column, the rows have the column `stage`
stage                     number of the stage, from 0, in a row of its own; without the column, all stages are alike
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from oppa.errors import InputError, nearest, reason
from oppa.pipeline.costs import WEIGHT_MEMORY, Costs
from oppa.regular_file import read_csv

SECONDS = {"T_F_ms": "forward_s", "T_B_ms": "backward_s", "T_W_ms": "weight_s"}
TRANSFER = "T_comm_ms"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStages:
    """Holds the times of one model's stages, at one number of stages and micro-batches."""

    model: str
    """Name of the model; empty if the file has none."""
    micro_batches: int
    """Number of micro-batches; 0 if the file has none."""
    costs: Costs


def read_profiled(path: Path, *, weight_memory: float = WEIGHT_MEMORY) -> list[ProfiledStages]:
    """Read all entries of a file, in its order.

    Raises:
        InputError: there is no such file, a column is missing, or a value is invalid; the message names the line of a value.
    """
    try:
        rows = pd.read_csv(read_csv(path), dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise InputError(f"`{path}` does not exist", hint="name a CSV file of stage times") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"`{path}` cannot be read as CSV: {reason(error)}", hint=f"write a CSV file with the columns {', '.join(SECONDS)}"
        ) from None
    if not isinstance(rows.index, pd.RangeIndex):
        raise InputError(f"`{path}` has lines of more values than columns", hint="give each value a column, or remove it")
    if lacking := [column for column in SECONDS if column not in rows]:
        hint = "write milliseconds into it; 0 in `T_W_ms` if `T_B_ms` is the whole backward pass"
        raise InputError(f"`{path}` has no column `{lacking[0]}`, only {', '.join(map(str, rows))}", hint=hint)
    if rows.empty:
        raise InputError(f"`{path}` has no rows", hint="write a row for each model and number of micro-batches")
    named = [column for column in ("model", "pp", "microbatches") if column in rows]
    groups = rows.groupby(named, sort=False) if named else [((), rows)]
    return [_profiled(path, dict(zip(named, map(str, key), strict=True)), group, weight_memory) for key, group in groups]


def choose(profiled: list[ProfiledStages], *, stages: int, micro_batches: int, model: str = "") -> ProfiledStages:
    """Return the entry with this number of stages whose number of micro-batches is nearest.

    Raises:
        InputError: there is none, or there are several models and `model` names none.
    """
    models = list(dict.fromkeys(each.model for each in profiled))
    if model and model not in models:
        raise InputError(f"the file has no times of the model `{model}`", hint=nearest(model, models))
    fitting = [each for each in profiled if each.costs.ranks == stages and model in ("", each.model)]
    if not fitting:
        known = sorted({each.costs.ranks for each in profiled if model in ("", each.model)})
        hint = f"it has those of {', '.join(map(str, known))}: use --stages {known[0]}"
        raise InputError(f"the file has no times of {stages} stages", hint=hint)
    if len({each.model for each in fitting}) > 1:
        raise InputError(
            "the file has times of several models",
            hint=f"name one with --set times.model=NAME: {', '.join(dict.fromkeys(each.model for each in fitting))}",
        )
    return min(fitting, key=lambda each: abs(each.micro_batches - micro_batches) if each.micro_batches else math.inf)


def _profiled(path: Path, names: Mapping[str, str], rows: pd.DataFrame, weight_memory: float) -> ProfiledStages:
    count = _count(path, names["pp"], rows) if "pp" in names else len(rows)
    if "stage" in rows:
        rows = rows.sort_values("stage", key=lambda column: pd.to_numeric(column, errors="coerce"))
        if [str(each) for each in rows["stage"]] != [str(each) for each in range(count)]:
            found = ", ".join(rows["stage"])
            raise InputError(
                f"`{path}`: the stages are {found}, not 0 to {count - 1}, each once", hint="write one row for each stage, from 0 on"
            )
        each = {name: [_seconds(path, line, column) for line in _lines(rows)] for column, name in SECONDS.items()}
    elif len(rows) > 1:
        raise InputError(
            f"`{path}`: {len(rows)} rows describe the same pipeline",
            hint="add the column in which they differ: model, pp, microbatches or stage",
        )
    else:
        (line,) = _lines(rows)
        if "pp" not in names:
            raise InputError(f"`{path}` does not state the number of stages", hint="add a column `pp`, or a row for each `stage`")
        each = {name: [_seconds(path, line, column)] * count for column, name in SECONDS.items()}
    transfers = [_seconds(path, line, TRANSFER) for line in _lines(rows)] if TRANSFER in rows else [0.0]
    transfers = transfers[:-1] or transfers
    micro_batches = _count(path, names["microbatches"], rows) if "microbatches" in names else 0
    return ProfiledStages(
        model=names.get("model", ""),
        micro_batches=micro_batches,
        costs=Costs(
            forward_s=each["forward_s"],
            backward_s=each["backward_s"],
            weight_s=each["weight_s"],
            transfer_s=max(transfers),
            weight_memory=weight_memory,
        ),
    )


_Line = tuple[int, Mapping[str, str]]


def _lines(rows: pd.DataFrame) -> list[_Line]:
    """Return each row with its line number in the file."""
    return [(int(number) + 2, {str(key): str(value) for key, value in row.items()}) for number, row in rows.iterrows()]  # type: ignore[call-overload]


def _seconds(path: Path, line: _Line, column: str) -> float:
    number, row = line
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and column not in (TRANSFER, "T_W_ms")):
        raise InputError(
            f"`{path}`, line {number}: `{column} = {row[column]}` is not a time", hint="write milliseconds, as a positive number"
        )
    return value / 1e3


def _count(path: Path, value: str, rows: pd.DataFrame) -> int:
    if re.fullmatch("[0-9]{1,6}", value) and int(value) > 0:
        return int(value)
    raise InputError(
        f"`{path}`, line {_lines(rows)[0][0]}: `{value}` is not a number of stages or micro-batches", hint="write a whole number from 1 on"
    )
