"""Read the runs of nanotron in Hugging Face's Ultra-Scale Playbook (2025)."""

import pandas as pd

from oppa import catalog
from oppa.bench.published.columns import ALLOCATED, DIMENSIONS, FAILED, RAN, complete
from oppa.bench.published.files import NANOTRON, read_file
from oppa.simulator.replay_file import read_replay_file
from oppa.units import GIB


def nanotron_rows() -> pd.DataFrame:
    """Return every run of the file (`model`, `nodes`, `status`, `flag`, ...) as a row for `predict_rows`.

    Assumptions, with their reasons:
        precision    bf16 with fp32 gradients: nanotron's default, and that of the playbook's benchmark.
        attention    flash: nanotron's Llama computes it with flash_attn.
        parallelism  sequence parallel whenever tp > 1: the runs' memory shows 0.7% of a layer's tensors unsharded (results/calibrate).
        memory       torch's peak of allocated bytes; the file's GB are GiB, because nanotron divides by 1024^3.
        failures     `failed` lumps out-of-memory with crashes and illegal settings, so no row is `oom`.
    """
    replayed = read_replay_file(catalog.find("search_spaces", "nanotron-h100"))
    models = {name: replayed.model(name) for name in replayed.replay.models}
    dimensions = pd.DataFrame(
        [{key: getattr(model, key) for key in (*DIMENSIONS, "tied")} for model in models.values()], index=pd.Index(models)
    )
    runs = read_file(NANOTRON).join(dimensions, on="model")
    batch = replayed.replay.batch.global_batch
    rows = runs.assign(
        device="H100",
        gpus_per_node=8,
        gbs=batch,
        recompute="none",
        framework="nanotron",
        precision="bf16",
        sequence_parallel=runs["tp"] > 1,
        status=runs["status"].map({"ok": RAN}).fillna(FAILED),
        step_time_s=batch * runs["seq_len"] / runs["tok_s"],
        memory_bytes=runs["mem_gb"] * GIB,
        memory_kind=ALLOCATED,
    )
    return complete(rows, source="nanotron", task=("model", "gpus"))
