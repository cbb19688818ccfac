"""Read published runs of Megatron-LM: iterations of large models on A100, and a tutorial's runs on one host of H100.

`megatron_rows` rests on the tutorial's scripts, which name every option of a run (megatron-core 0.14):

model        the dimensions of `--num-layers`, `--hidden-size` and `--num-attention-heads`. Megatron's defaults hold otherwise: a
             feed-forward network of 4 times the hidden size without a gate, and tied embeddings. GPT-2's vocabulary is padded to a
             multiple of 128 * tp.
olmoe        GPT-2's blocks with OLMoE's number of layers and experts, but a hidden size of 1,024 in place of 2,048; not gated, no biases.
             Its `--sequence-parallel` changes nothing, because tp = 1.
batch        one micro-batch per replica where the file states none: the scripts compute it so. R4 of 101 accumulates 4 of 15.
zero         "ZeRO-2" is `--use-distributed-optimizer`, which shards the optimizer states and keeps whole fp32 gradients. The file
             agrees: on 4 devices it frees 14.9e9 bytes. Sharded states of 1.56e9 weights free 14.0e9, and gradients would free 4.7e9 more.
vpp          `vpp` is `--num-layers-per-virtual-pipeline-stage`, not a number of chunks. R8 (9 of 9 layers) and R15 (18 of 18) need the
             time and the memory of the runs without it. The fastest of R10 to R15 then has 3 chunks.
attention    `--attention-backend auto` or `flash`: a fused kernel on H100.
loss         not fused: `--cross-entropy-loss-fusion` is absent. Dropout is 0.1 (the default), so masks are stored.
memory       nvidia-smi's, in units of 1,000 MiB: the text shows 33,321 MiB for the run of 33.3, and 80.6 is below the board's 81,559 MiB.
"""

import numpy as np
import pandas as pd

from experiments.published.dimensions import dimensions_of, gpt
from oppa.bench.published.columns import DEVICE, OUT_OF_MEMORY, RAN, complete
from oppa.bench.published.files import MEGATRON, RECOMPUTATION, read_file
from oppa.units import MIB

_VOCAB = 50257
"""Tokens of GPT-2's vocabulary, which Megatron-LM pads."""
_MODELS = {
    "gpt2-xl": gpt(48, 1600, 25),
    "gpt2-xl+14L": gpt(62, 1600, 25),
    "gpt2-1.2B": gpt(40, 1536, 16),
    "gpt2-2.5B": gpt(54, 1920, 20),
    "gpt2-4.2B": gpt(64, 2304, 24),
    "gpt2-8.3B": gpt(72, 3072, 32),
    "gpt-22B": gpt(48, 6144, 64),
    "olmoe": {**gpt(16, 1024, 16), "ffn": 1024},
}


def megatron_rows() -> pd.DataFrame:
    """Return the 66 runs of the tutorial as rows for `predict_rows`; the module's docstring states what is assumed."""
    runs = read_file(MEGATRON)
    whole = runs[["cp", "ep", "etp", "experts", "topk", "vpp"]].fillna(1).astype(int)
    dp = runs["dp"].fillna(1).astype(int)
    accumulated = runs["row"].str.contains("GA 4").map({True: 4, False: 1})
    mbs = runs["mbs"].fillna(runs["gbs"] / dp / accumulated).astype(int)
    dimensions = dimensions_of(runs["model"], _MODELS)
    chunks = np.where(whole["vpp"] > 1, dimensions["layers"] / runs["pp"] / whole["vpp"], 1).astype(int)
    padding = 128 * runs["tp"]
    rows = runs[["row", "model", "gpus", "gbs", "seq_len", "tp", "pp"]].join(dimensions)
    rows = rows.assign(
        device="H100",
        gpus_per_node=8,
        dp=dp,
        mbs=mbs,
        vocab=-(-_VOCAB // padding) * padding,
        model_chunks=chunks,
        cp=whole["cp"],
        cp_mode=runs["cp_mode"].map({"p2p": "ring", "all_gather": "all-gather", "a2a": "all-to-all"}).where(whole["cp"] > 1, ""),
        ep=whole["ep"],
        etp=whole["etp"],
        experts=whole["experts"],
        experts_per_token=whole["topk"],
        expert_ffn=dimensions["ffn"].where(whole["experts"] > 1, 0),
        zero=runs["zero"].fillna(0).clip(upper=1).astype(int),
        sequence_parallel=runs["sp"].eq("yes"),
        recompute=runs["recompute"].eq("recompute activations").map({True: "full", False: "none"}),
        framework="megatron",
        precision="bf16",
        gated=False,
        tied=True,
        status=runs["status"].map({"ok": RAN, "oom": OUT_OF_MEMORY}),
        step_time_s=runs["step_ms"] / 1e3,
        memory_bytes=runs["mem_gb"] * 1000 * MIB,
        memory_kind=DEVICE,
    )
    return complete(rows, source="megatron_8xh100", task=("model", "experts", "gpus", "seq_len", "gbs"))


def recomputation_rows() -> pd.DataFrame:
    """Return iterations with full and with selective recomputation as rows for `predict_rows`.

    Assumptions, with their reasons:
        precision    fp16, the state of the art of the paper (Korthikanti et al. 2022), which the file states too.
        attention    plain: selective recomputation recomputes its scores. The paper is older than FlashAttention.
        parallelism  the selective runs are sequence parallel, and the full ones are not: the paper's table 5 compares these two.
        vocabulary   51,200, as the paper states.
        overlap_p2p  false: Megatron-LM of 2022 synchronised after each exchange of an interleaved stage.
    """
    runs = read_file(RECOMPUTATION)
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
    rows = rows.assign(
        vocab=51200,
        device="A100-80GB",
        gpus_per_node=8,
        zero=0,
        precision="fp16",
        gated=False,
        kv_heads=rows["heads"],
        framework="megatron",
        attention="plain",
        sequence_parallel=runs["mode"].eq("seqsel"),
        overlap_p2p=False,
        recompute=runs["mode"].map({"full": "full", "seqsel": "selective"}),
        status=RAN,
    )
    return complete(rows, source="korthikanti", task=("model", "gpus"))
