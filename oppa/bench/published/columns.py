"""Define the columns that the rows of every source have.

They are the columns of `predict_rows`, and these:

source        name of the source
task          rows of one task are alternatives to one another: the same model on the same devices, at the same sequence length
model         name of the model
status        `ran`, `oom` (out of memory), or `failed` for any other or an unknown reason
step_time_s   measured seconds of an optimizer step; missing if the run has none
memory_bytes  measured peak memory of the fullest device; missing if the run has none
memory_kind   `allocated` (torch's peak of allocated bytes), or `device` (nvidia-smi: reserved bytes and those of CUDA's context)
kernels       fused kernels that no column of `predict_rows` states; such rows are tasks of their own
trained       `all`, or `lora`: the weights are frozen, and only adapters are trained
weights       `16-bit`, or `4-bit` for frozen weights that are quantised
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

RAN, OUT_OF_MEMORY, FAILED = "ran", "oom", "failed"
ALLOCATED, DEVICE = "allocated", "device"
DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
DEFAULTS: Mapping[str, Any] = {
    "tied": False,
    "gated": True,
    "model_chunks": 1,
    "cp": 1,
    "cp_mode": "",
    "ep": 1,
    "etp": 1,
    "experts": 1,
    "experts_per_token": 1,
    "expert_ffn": 0,
    "shared_expert_ffn": 0,
    "dense_layers": 0,
    "sequence_parallel": False,
    "attention": "flash",
    "loss": "",
    "residuals": "",
    "norms": "",
    "expert_products": "",
    "optimizer": "",
    "gradients": "",
    "stage_layout": "",
    "offload": "",
    "overlap_tp": "",
    "compiled": "",
    "kernels": "",
    "trained": "all",
    "weights": "16-bit",
    "memory_bytes": float("nan"),
    "memory_kind": "",
}
"""Values of the columns that a source does not state; an empty cell is the default of `predict_rows`."""


def complete(rows: pd.DataFrame, *, source: str, task: Sequence[str]) -> pd.DataFrame:
    """Return the rows with `source`, with `task` made of some columns, and with the defaults of columns that they lack."""
    named = rows[list(task)].astype("str").agg(", ".join, axis=1)
    known = rows.assign(source=source, task=source + ": " + named)
    return known.assign(**{name: value for name, value in DEFAULTS.items() if name not in rows})
