"""Read the trials of language-model-driven tuning runs in cornell-sysphotonics/ccl-bench.

The file has no licence: it only judges, and no coefficient is fitted to it.
"""

import pandas as pd

from oppa.bench.published.columns import FAILED, OUT_OF_MEMORY, RAN, complete
from oppa.bench.published.files import CCL, read_file

_STAND_IN = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq_len": 1024}
_BATCH = 64
_STATUS = {"oom": OUT_OF_MEMORY}


def tuning_trial_rows() -> pd.DataFrame:
    """Return the trials that state a layout as rows for `predict_rows`: only their order can be judged.

    Assumptions, with their reasons:
        model    unknown. An 8B Llama stands in for it, so that no prediction of seconds or bytes counts.
        batch    64 sequences per step: unknown as well, but constant, because a run's step time hardly depends on its micro-batch.
        devices  A100-40GB with 4 to a host, as the runs' nodes have; trials with fewer devices than the layout names are left out.
        experts  the runs with `ep` trained a mixture of experts of unknown size. They are left out.
    """
    trials = read_file(CCL)
    known = trials[["gpus", "tp", "dp", "pp", "mbs"]].notna().all(axis=1) & trials["ep"].isna()
    trials = trials[known & (trials["tp"] * trials["dp"] * trials["pp"] == trials["gpus"])].reset_index(drop=True)
    rows = (
        trials[["gpus", "tp", "dp", "pp", "mbs"]]
        .astype(int)
        .assign(
            **_STAND_IN,
            model=trials["run"],
            device="A100-40GB",
            gpus_per_node=4,
            gbs=_BATCH,
            zero=0,
            recompute=trials["activation_checkpointing"].astype("str").eq("True").map({True: "full", False: "none"}),
            kernels=trials["compile_mode"].fillna(""),
            framework="",
            precision="bf16",
            status=trials["cause"].map(_STATUS).fillna(trials["status"].map({"success": RAN}).fillna(FAILED)),
            step_time_s=trials["avg_step_time_s"],
        )
    )
    return complete(rows, source="ccl_search", task=("model", "gpus"))
