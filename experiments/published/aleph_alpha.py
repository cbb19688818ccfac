"""Read the runs of Hagemann et al. (2023), "Efficient Parallelization Layouts for Large-Scale Distributed Model Training".

Their licence permits to judge by them only: no coefficient is fitted to them.
"""

import pandas as pd

from oppa import catalog
from oppa.bench.published.columns import DIMENSIONS, OUT_OF_MEMORY, RAN, complete
from oppa.bench.published.files import ALEPH_ALPHA, ALEPH_ALPHA_MODELS, read_file
from oppa.simulator.replay_file import read_replay_file


def aleph_alpha_rows() -> pd.DataFrame:
    """Return LLaMA 13B and 30B at 8,192 tokens on 64 and 128 A100 as rows for `predict_rows`.

    Assumptions, with their reasons:
        model        the dimensions of the replay file: LLaMA's, with a vocabulary of 128,000, gated, untied.
        batch        512 sequences: inferred from step times and the published MFU; no other power of two is plausible.
        framework    none: the file names no trainer. ZeRO 1 in every run is assumed, as the file's `zero` column is.
        attention    flash: the abstract names it among the optimizations of the study; 8,192 tokens hardly fit otherwise.
        parallelism  `-sp` is sequence parallel; the others are not.
        norms        of `-rms` fused, of the others separate operations of torch.
        kernels      `-rms` is a task of its own.
    """
    replayed = read_replay_file(catalog.data_folder() / ALEPH_ALPHA_MODELS)
    models = {name: replayed.model(name) for name in replayed.replay.models}
    runs = read_file(ALEPH_ALPHA)
    dimensions = pd.DataFrame([{key: getattr(models[name], key) for key in (*DIMENSIONS, "tied", "gated")} for name in runs["model"]])
    cluster = replayed.replay.cluster
    rows = runs.join(dimensions).assign(
        device=cluster.device,
        gpus=runs["nodes"] * cluster.devices_per_host,
        gpus_per_node=cluster.devices_per_host,
        gbs=replayed.replay.batch.global_batch,
        framework="",
        precision="bf16",
        sequence_parallel=runs["model"].str.endswith("-sp"),
        norms=runs["model"].str.contains("-rms").map({True: "fused", False: "plain"}),
        kernels=runs["model"].str.contains("-rms").map({True: "rms", False: ""}),
        status=runs["status"].map({"ok": RAN, "oom": OUT_OF_MEMORY}),
    )
    return complete(rows, source="aleph_alpha_8k", task=("model", "gpus"))
