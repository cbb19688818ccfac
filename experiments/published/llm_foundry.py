"""Read the throughput tables of MPT models in mosaicml/llm-foundry."""

import pandas as pd

from experiments.published.dimensions import dimensions_of, gpt
from oppa.bench.published.columns import RAN, complete
from oppa.bench.published.files import LLM_FOUNDRY, read_file

_MODELS = {
    "125m": gpt(12, 768, 12),
    "350m": gpt(24, 1024, 16),
    "760m": gpt(24, 1536, 12),
    "1b": gpt(24, 2048, 16),
    "3b": gpt(32, 2560, 20),
    "7b": gpt(32, 4096, 32),
    "13b": gpt(40, 5120, 40),
    "30b": gpt(48, 7168, 56),
    "70b": gpt(80, 8192, 64),
}


def llm_foundry_rows() -> pd.DataFrame:
    """Return the FSDP runs, all of which ran, as rows for `predict_rows`.

    Five rows are left out. The log of one had no throughput (-1), and four of 13b in `torch2.csv` claim 102% and 199% of the peak.

    Assumptions, with their reasons:
        model        MPT: layer norms, no biases, no gate, tied, learned positions. By `params`, 70b has 80 layers.
        framework    FSDP1 with FULL_SHARD, one unit per block, `limit_all_gathers`: the benchmark's scripts set these.
        precision    bf16 with sharded fp32 weights: Composer's `bf16` was renamed `amp_bf16` and casts within FSDP.
                     `mp_mode` PURE exchanges gradients in bf16, DEFAULT in fp32; no column of `predict_rows` states that.
        optimizer    AdamW with fp32 states: `decoupled_adamw` of the models' files.
        attention    flash: `attn_impl: triton`, the default of the benchmark's scripts.
        loss         `fused_crossentropy`, MPT's default: no fp32 copy of the logits.
        network      1,600 Gbit/s per host on both kinds of A100, as the tables' titles state; `device` cannot state it for the 40 GB board.
        offload      `activations` in two runs.
        step time    tokens of a batch over the tokens per second, which the file rounds to whole tokens.
    """
    runs = read_file(LLM_FOUNDRY)
    runs = runs[runs["hfu_pct"].between(0, 100)].reset_index(drop=True)
    rows = dimensions_of(runs["model"], _MODELS).join(runs[["model", "seq_len", "gpus", "mbs", "mp_mode", "mfu_pct", "params"]])
    rows = rows.assign(
        vocab=50368,
        device=runs["gpu"].map({"a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB"}),
        gpus_per_node=8,
        gbs=runs["gbs_seq"],
        dp=runs["gpus"],
        tp=1,
        pp=1,
        zero=runs["zero"],
        recompute=runs["act_ckpt"].map({True: "full", False: "none"}),
        offload=runs["act_offload"].map({True: "activations", False: ""}),
        framework="fsdp",
        precision="bf16",
        loss="fused",
        gated=False,
        tied=True,
        status=RAN,
        step_time_s=runs["gbs_tok"] / runs["tok_s"],
    )
    return complete(rows, source="llm_foundry_a100", task=("model", "device", "gpus", "seq_len"))
