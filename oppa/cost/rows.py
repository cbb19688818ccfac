"""Convert the rows of a user's table into a workload; models and devices may differ from row to row."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.hardware import Hardware, load_hardware
from oppa.cost.workload import RECOMPUTE, ConfigurationFacts, DeviceFacts, ModelFacts, Workload, layout_of, machine_facts, shape_facts
from oppa.errors import InputError, nearest
from oppa.problem.devices import devices, identify
from oppa.problem.model import Model

MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
PLACE = ("gpus", "gpus_per_node")
LAYOUT = ("gbs", "mbs", "dp", "tp", "pp", "model_chunks", "zero")
REQUIRED = (*MODEL, "device", *PLACE, *LAYOUT, "recompute")
OPTIONAL = ("precision", "gated", "tied")
PRECISIONS = ("", "fp32", "tf32", "fp16", "bf16")
"""Accepted precisions; empty means the device's default."""
LARGEST = 10**9


def check_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that the cost model reads, converted to their types, with defaults for optional columns.

    Raises:
        InputError: a column is missing or occurs twice, or a value is invalid; the message names the column or the line.
    """
    if not rows.columns.is_unique:
        twice = rows.columns[rows.columns.duplicated()][0]
        raise InputError(f"the rows have two columns `{twice}`", hint="keep one of them, or rename the other")
    for name in REQUIRED:
        if name not in rows:
            raise InputError(
                f"the rows have no column `{name}`", hint=f"add it; the rows need {', '.join(REQUIRED)}, and may have {', '.join(OPTIONAL)}"
            )
    checked = {name: _whole_numbers(rows[name], least=1) for name in (*MODEL, *PLACE, *LAYOUT) if name != "zero"}
    checked["zero"] = _whole_numbers(rows["zero"], least=0, most=3)
    checked["device"] = _devices(rows["device"])
    checked["recompute"] = _words(rows["recompute"], RECOMPUTE, default="none")
    checked["precision"] = _words(_optional(rows, "precision"), PRECISIONS)
    checked["gated"] = _flags(_optional(rows, "gated"), default=True)
    checked["tied"] = _flags(_optional(rows, "tied"), default=False)
    return pd.DataFrame(checked)


def illegal(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the checked rows that no framework can run, shape (n,).

    In such a row dp * tp * pp is not the number of devices, the batch does not divide, or stages outnumber layers.
    """
    ranks = rows["dp"].astype(np.float64) * rows["tp"] * rows["pp"] != rows["gpus"]  # int64 products could overflow
    batch = rows["gbs"] % (rows["dp"] * rows["mbs"]) != 0
    layers = rows["pp"] * rows["model_chunks"] > rows["layers"]
    return (ranks | batch | layers).to_numpy()


def workload_of_rows(rows: pd.DataFrame) -> Workload:
    """Return the workload of rows that are checked and legal; raises InputError if a device's file is invalid."""
    models, which_model = _distinct(rows, [*MODEL, "gated", "tied"])
    machines, which_machine = _distinct(rows, ["device", "precision", "gpus_per_node"])
    known = {name: load_hardware(name) for name in rows["device"].unique()}
    return Workload(
        shape=ModelFacts(**_spread([shape_facts(Model(**values)) for values in models], which_model)),
        layout=_layout(rows),
        machine=DeviceFacts(**_spread([_machine(known[values.pop("device")], **values) for values in machines], which_machine)),
    )


def _layout(rows: pd.DataFrame) -> ConfigurationFacts:
    columns = {name: rows[name].to_numpy() for name in ("dp", "tp", "pp", "model_chunks", "recompute")}
    sharded = np.where(rows["dp"] > 1, rows["zero"], 0)  # a single replica has nothing to shard
    columns |= {"zero_stage": sharded, "micro_batch": rows["mbs"].to_numpy()}
    columns["num_microbatches"] = (rows["gbs"] // (rows["dp"] * rows["mbs"])).to_numpy()
    return layout_of(columns, balanced=True)


def _machine(hardware: Hardware, precision: str, gpus_per_node: int) -> dict[str, float]:
    return {**machine_facts(hardware, precision or hardware.default_precision), "devices_per_host": gpus_per_node}


def _distinct(rows: pd.DataFrame, columns: list[str]) -> tuple[list[dict[str, Any]], NDArray[np.integer]]:
    """Return the distinct combinations of values in some columns, and for each row the index of its own."""
    numbers = rows.groupby(columns, sort=False).ngroup().to_numpy()
    _, first = np.unique(numbers, return_index=True)
    values = [rows[name].to_numpy()[first].tolist() for name in columns]
    return [dict(zip(columns, each, strict=True)) for each in zip(*values, strict=True)], numbers


def _spread(facts: list[dict[str, float]], which: NDArray[np.integer]) -> dict[str, Tensor]:
    """Return one float64 column per fact; row i takes the facts at index `which[i]`."""
    return {name: torch.from_numpy(np.array([float(each[name]) for each in facts])[which]) for name in facts[0]}


def _optional(rows: pd.DataFrame, name: str) -> pd.Series:
    return rows[name] if name in rows else pd.Series("", rows.index)


def _whole_numbers(column: pd.Series, *, least: int, most: int = LARGEST) -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        numbers = pd.to_numeric(cells, errors="coerce")
        return numbers.where(numbers.between(least, most) & (numbers % 1 == 0))

    return _checked(column, read, lambda _: f"write a whole number from {least} to {most:,}").astype(np.int64)


def _words(column: pd.Series, known: Sequence[str], *, default: str = "") -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        words = cells.astype("str").fillna("").replace("", default)
        return words.where(words.isin(known))

    return _checked(column, read, lambda word: nearest(word, filter(None, known)))


def _devices(column: pd.Series) -> pd.Series:
    """Return the device ids of the catalogue for a column of ids and aliases."""

    def read(cells: pd.Series) -> pd.Series:
        return cells.astype("str").map(identify)

    return _checked(column, read, lambda name: nearest(name, devices()))


def _flags(column: pd.Series, *, default: bool) -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        words = cells.astype("str").fillna("").replace("", str(default)).str.lower()
        return words.map({"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0})

    return _checked(column, read, lambda _: "write true or false").astype(bool)


def _checked(column: pd.Series, read: Callable[[pd.Series], pd.Series], hint: Callable[[str], str]) -> pd.Series:
    """Convert a column with `read`, which returns NaN for each invalid value.

    `read` gets each distinct value once, because a million rows have few of them.

    Raises:
        InputError: a value is invalid; the message names the first, with its line (the index counts lines below the header from 0).
    """
    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    values = read(pd.Series(distinct))
    if values.isna().any():
        label, cell = next(column[values.isna().to_numpy()[codes]].items())
        cell_text = f"`{column.name} = {cell}`" if str(cell) and pd.notna(cell) else f"`{column.name}` is empty"
        raise InputError(f"line {int(str(label)) + 2}: {cell_text}", hint=hint(str(cell)))
    return values.take(codes).set_axis(column.index)
