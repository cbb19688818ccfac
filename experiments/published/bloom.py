"""Read the trials by which BigScience chose the layout of BLOOM: Megatron-DeepSpeed on 320 and 384 A100 of Jean Zay.

`bloom_trials.csv` is part of the project, as the page is public and its licence (Apache 2.0) permits it. It has the page's tables from
20 February 2022 on:
https://github.com/bigscience-workshop/bigscience/blob/9e64edec2ad1fb9263bf39ba616a84ff64b4d947/train/tr11-176B-ml/chronicles-prequel.md

Columns:
    date            day of the trial; faster settings of PCIe and NUMA are in use from 25 February on, by 1% to 5%
    ends_as_layers  the embedding and the output projection count as layers when stages are cut
    step_time_s     seconds of the second iteration, measured once
    memory_gb       nvidia-smi's figure for the first or the last host, in whole GB

Left out are rows whose number of layers or heads the page does not state, among them all with a hidden size of 14,400. Left out, too, are
rows without a time, whose devices do not match their degrees, or whose columns are swapped, and repetitions of one trial.
"""

from pathlib import Path

import pandas as pd

from oppa.bench.published.columns import DEVICE, complete
from oppa.units import GIB

TRIALS = Path(__file__).with_name("bloom_trials.csv")


def bloom_rows() -> pd.DataFrame:
    """Return the trials as rows for `predict_rows`.

    Assumptions, with their reasons:
        model        GPT's blocks without a gate, tied, 2,048 tokens; the page's vocabulary of 250,000, padded as BLOOM's (250,880).
        framework    DeepSpeed's pipeline with ZeRO 1, no sequence parallelism.
        stages       equally many layers, as Megatron-DeepSpeed cuts them by `type:transformer`, until the page states another cut.
        recompute    full: `--checkpoint-activations`, as in the scripts of the training that followed.
        attention    plain, with Megatron's fused softmax: the page names its constraints.
        gradients    fp16 until 27 February. From then on `BF16_Optimizer`, new then, accumulates them in fp32.
        network      the catalogue's; Jean Zay's hosts have four links of 100 Gbit/s, which `device` cannot state.
        memory       GB of nvidia-smi are GiB: the page calls 77 the most, on boards of 80.
    """
    runs = pd.read_csv(TRIALS)
    late = runs["date"] >= "2022-02-25"
    rows = runs[["layers", "hidden", "heads", "dp", "tp", "pp", "mbs", "gbs", "precision", "step_time_s", "status"]].assign(
        model=[f"{layers} x {hidden}" for layers, hidden in zip(runs["layers"], runs["hidden"], strict=True)],
        settings=late.map({True: "late", False: "early"}),
        kv_heads=runs["heads"],
        ffn=4 * runs["hidden"],
        vocab=250880,
        seq_len=2048,
        device="A100-80GB",
        gpus=8 * runs["nodes"],
        gpus_per_node=8,
        zero=1,
        recompute="full",
        framework="deepspeed",
        attention="plain",
        gradients=runs["precision"].map({"fp16": "16-bit", "bf16": "32-bit"}),
        stage_layout=runs["ends_as_layers"].map({True: "balanced", False: "even"}),
        gated=False,
        tied=True,
        memory_bytes=runs["memory_gb"] * GIB,
        memory_kind=DEVICE,
    )
    return complete(rows, source="bloom", task=("model", "heads", "gpus", "settings", "precision"))
