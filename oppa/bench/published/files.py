"""Find the files of published measurements in a local copy; none of them is part of this project.

The variable OPPA_DATA names the folder; the default is `../shared/data`, relative to the working directory.
"""

from collections.abc import Mapping

import pandas as pd

from oppa import catalog
from oppa.errors import EnvironmentLackingError

NANOTRON, RECOMPUTATION, ALL_REDUCES = "nanotron_h100.csv", "korthikanti_recompute_a100.csv", "nccl_allreduce.csv"
MEGATRON, LLM_FOUNDRY, FMS, FMS_MOE = "megatron_8xh100.csv", "llm_foundry_a100.csv", "fms_a100.csv", "fms_a100_moe.csv"
ALEPH_ALPHA, ALEPH_ALPHA_MODELS, CCL = "aleph_alpha_8k.csv", "aleph_alpha_8k.toml", "ccl_search_a100_40gb.csv"
FILES = {
    NANOTRON: "runs of nanotron on 8 to 512 H100, from the Ultra-Scale Playbook (Hugging Face, 2025)",
    RECOMPUTATION: "iterations of Megatron-LM on A100 (Korthikanti et al. 2022, table 5)",
    ALL_REDUCES: "NCCL all-reduces within a host (vTrain)",
    MEGATRON: "runs of Megatron-LM on 1 to 8 H100 (vuiseng9/megatron-tutorials)",
    LLM_FOUNDRY: "FSDP runs of MPT models on 8 to 128 A100 (mosaicml/llm-foundry)",
    FMS: "fine-tuning with Transformers on 1 and 2 A100 (foundation-model-stack/fms-acceleration)",
    FMS_MOE: "fine-tuning of mixtures of experts on 1 to 8 A100 (foundation-model-stack/fms-acceleration)",
    ALEPH_ALPHA: "LLaMA 13B and 30B at 8k on 64 and 128 A100 (Hagemann et al. 2023)",
    ALEPH_ALPHA_MODELS: "the models of those runs",
    CCL: "trials of tuning runs on A100-40GB (cornell-sysphotonics/ccl-bench)",
}


def missing(files: Mapping[str, str] = FILES) -> dict[str, str]:
    """Return the files that are missing, with their descriptions."""
    return {name: holds for name, holds in files.items() if not (catalog.data_folder() / name).is_file()}


def read_file(name: str) -> pd.DataFrame:
    """Return the table of a file of FILES; raises EnvironmentLackingError if it is missing."""
    path = catalog.data_folder() / name
    if not path.is_file():
        raise EnvironmentLackingError(f"`{path}` does not exist: {FILES[name]}", hint="name its folder: `OPPA_DATA=...`")
    return pd.read_csv(path)
