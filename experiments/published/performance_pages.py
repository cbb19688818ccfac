"""Read the step times and the memory that projects publish on their own pages.

`performance_pages.csv` is part of the project, as these pages are public and their licences permit it. A row names its page (`url`), and
what was assumed about the run (`note`). No coefficient is fitted to them.

Columns in addition to those of `predict_rows`:
    source        page: of Megatron-Bridge and NeMo (Apache 2.0), DGX Cloud Benchmarking (MIT), Megatron-LM, torchtitan, torchao and
                  torchtune (BSD); `mlperf_training`: logs of submissions to MLPerf Training (MLCommons, Apache 2.0)
    version       release of the page, or round of MLPerf Training
    kind          dense, moe, fine-tuning (of all weights), or lora
    confidence    high; medium if a part of the layout is assumed; low if more is
    less_power    true if the devices have less power or bandwidth than those of the catalogue, by the page
    step_time_s   measured seconds of an optimizer step, mostly from tokens per second and device; `mlperf_training`: see below
    memory_bytes  torch's measured peak, if it is published

Assumptions about all rows:
    megatron      distributed optimizer, and overlap of gradients and gathers unless the recipe turns it off. `overlap_p2p` with virtual
                  stages; `overlap_tp` for dense models with tensor parallelism. Weights stay in 8 bits in fp8.
    gradients     16-bit in recipes of Megatron-Bridge and DGX Cloud Benchmarking (`grad_reduce_in_fp32=False`).
    recompute     `selective` also where a recipe recomputes other modules, such as `moe_act` and `mla_up_proj`.
    experts       tokens are balanced by force, or dropped, so that no rank has more than the mean.
    layers        a module for multi-token prediction is one more layer.

MLPerf Training, rounds 3.1 to 5.1: GPT-3 175B, Llama 2 70B with LoRA, Llama 3.1 405B and 8B.
    time          wall time between evaluations over the steps in it: of a log the median without its first interval, and of a submission
                  the median of its 3 or 10 logs. Where evaluations have no start, it is the step time that the program logs.
    layout        the script that `note` names. Global batch and micro-batches are the log's, and degrees that contradict it are left out.
    packed        samples of LoRA are packed to 8,192 tokens, and attend across samples (`packed_sequence_return_cu_seqlen: False`).
    frozen        weights under LoRA are in 8 bits alone (`fp8_params`), but under DeepSpeed.
    vocabulary    Llama 3.1 405B has the tokenizer of Mixtral 8x22B in place of its own.
    left out      4-bit training (NVFP4), TPUs, Gaudi 2, MI350X, scripts that are not unique, and more than three partners with the same
                  layout on the same devices in one round.
"""

from pathlib import Path

import pandas as pd

PAGES = Path(__file__).with_name("performance_pages.csv")


def performance_pages() -> pd.DataFrame:
    """Return the runs of all pages as rows for `predict_rows`."""
    return pd.read_csv(PAGES, dtype={"version": str})
