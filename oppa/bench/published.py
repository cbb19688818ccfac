"""Read published measurements of others from a local copy; none of them is part of this project.

The variable OPPA_DATA names the folder; the default is `../shared/data`, relative to the working directory.
"""

from collections.abc import Mapping

import pandas as pd

from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.simulator.replay_file import read_replay_file
from oppa.units import GIB

NANOTRON, RECOMPUTATION, ALL_REDUCES = "nanotron_h100.csv", "korthikanti_recompute_a100.csv", "nccl_allreduce.csv"
FILES = {
    NANOTRON: "runs of nanotron on 8 to 512 H100, from the Ultra-Scale Playbook (Hugging Face, 2025)",
    RECOMPUTATION: "iterations of Megatron-LM on A100 (Korthikanti et al. 2022, table 5)",
    ALL_REDUCES: "NCCL all-reduces within a host (vTrain)",
}
DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")


def missing(files: Mapping[str, str] = FILES) -> dict[str, str]:
    """Return the files that are missing, with their descriptions."""
    return {name: holds for name, holds in files.items() if not (catalog.data_folder() / name).is_file()}


def nanotron_rows() -> pd.DataFrame:
    """Return every run of the file (`model`, `nodes`, `status`, `flag`, ...) as a row for `predict_rows`.

    Rows also have `step_time_s` and `memory_bytes`, which are missing if the run has no measurement.
    """
    replayed = read_replay_file(catalog.find("search_spaces", "nanotron-h100"))
    models = {name: replayed.model(name) for name in replayed.replay.models}
    dimensions = pd.DataFrame(
        [{key: getattr(model, key) for key in (*DIMENSIONS, "tied")} for model in models.values()], index=pd.Index(models)
    )
    runs = _read(NANOTRON).join(dimensions, on="model")
    batch = replayed.replay.batch.global_batch
    rows = runs.assign(device="H100", gpus_per_node=8, gbs=batch, model_chunks=1, recompute="none")
    return rows.assign(step_time_s=batch * rows["seq_len"] / rows["tok_s"], memory_bytes=rows["mem_gb"] * GIB)  # its GB are GiB


def recomputation_rows() -> pd.DataFrame:
    """Return iterations with full and with selective recomputation as rows for `predict_rows`, with `model` and `step_time_s`."""
    runs = _read(RECOMPUTATION)
    names = {
        "m_num_blocks": "layers",
        "m_hidden": "hidden",
        "m_attn_heads": "heads",
        "m_feedforward": "ffn",
        "m_seq_size": "seq_len",
        "num_procs": "gpus",
        "batch_size": "gbs",
        "microbatch_size": "mbs",
        "data_par": "dp",
        "tensor_par": "tp",
        "pipeline_par": "pp",
        "pipeline_interleaving": "model_chunks",
        "measured_iter_s": "step_time_s",
    }
    rows = runs.rename(columns=names)[["model", *names.values()]]
    rows = rows.assign(vocab=51200, device="A100-80GB", gpus_per_node=8, zero=0, precision="fp16", gated=False)
    return rows.assign(kv_heads=rows["heads"], recompute=runs["mode"].map({"full": "full", "seqsel": "selective"}))


def all_reduces(gpu: str) -> pd.DataFrame:
    """Return the all-reduces of one kind of device, with columns `members`, `bytes` and `seconds`."""
    measured = _read(ALL_REDUCES)
    measured = measured[measured["gpu"] == gpu].reset_index(drop=True)
    return pd.DataFrame({"members": measured["n_gpus"], "bytes": measured["bytes"], "seconds": measured["time_oop_ns"] * 1e-9})


def _read(name: str) -> pd.DataFrame:
    path = catalog.data_folder() / name
    if not path.is_file():
        raise EnvironmentLackingError(f"`{path}` does not exist: {FILES[name]}", hint="name its folder: `OPPA_DATA=...`")
    return pd.read_csv(path)
