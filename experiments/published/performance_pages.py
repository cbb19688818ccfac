"""Read the step times and the memory that projects publish on their own pages.

`performance_pages.csv` is part of the project, as these pages are public and their licences permit it. A row names its page (`url`), and
what was assumed about the run (`note`). No coefficient is fitted to them.

Columns in addition to those of `predict_rows`:
    source        page: of Megatron-Bridge and NeMo (Apache 2.0), DGX Cloud Benchmarking (MIT), Megatron-LM, torchtitan, torchao and
                  torchtune (BSD)
    version       release of the page
    kind          dense, moe, fine-tuning (of all weights), or lora
    confidence    high; medium if a part of the layout is assumed; low if more is
    less_power    true if the devices have less power or bandwidth than those of the catalogue, by the page
    step_time_s   measured seconds of an optimizer step, mostly from tokens per second and device
    memory_bytes  torch's measured peak, if it is published

Assumptions about all rows:
    megatron      distributed optimizer, and overlap of gradients and gathers unless the recipe turns it off. `overlap_p2p` with virtual
                  stages; `overlap_tp` for dense models with tensor parallelism. Weights stay in 8 bits in fp8.
    gradients     16-bit in recipes of Megatron-Bridge and DGX Cloud Benchmarking (`grad_reduce_in_fp32=False`).
    recompute     `selective` also where a recipe recomputes other modules, such as `moe_act` and `mla_up_proj`.
    experts       tokens are balanced by force, or dropped, so that no rank has more than the mean.
    layers        a module for multi-token prediction is one more layer.
"""

from pathlib import Path

import pandas as pd

PAGES = Path(__file__).with_name("performance_pages.csv")


def performance_pages() -> pd.DataFrame:
    """Return the runs of all pages as rows for `predict_rows`."""
    return pd.read_csv(PAGES, dtype={"version": str})
