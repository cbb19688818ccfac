"""List the sources of published runs, and state what each may be used for."""

import dataclasses
from collections.abc import Callable, Mapping

import pandas as pd

from experiments.published.aleph_alpha import aleph_alpha_rows
from experiments.published.bloom import bloom_rows
from experiments.published.fine_tuning import expert_fine_tuning_rows, fine_tuning_rows
from experiments.published.llm_foundry import llm_foundry_rows
from experiments.published.megatron import megatron_rows, recomputation_rows
from experiments.published.tuning_trials import tuning_trial_rows
from oppa.bench.published.nanotron import nanotron_rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSource:
    """Describes how far the rows of a source can be used."""

    about: str
    fitted: bool = True
    """Coefficients may be fitted to it: its licence permits it, and the cost model can describe its runs."""
    origin: str = ""
    """Name shared by sources of the same authors and machines, which are left out together; the source's own if empty."""
    known_model: bool = True
    """The dimensions of its models are known; otherwise only the order of its runs can be judged."""


SOURCES: Mapping[str, PublishedSource] = {
    "nanotron": PublishedSource(about="nanotron on 8 to 512 H100"),
    "megatron_8xh100": PublishedSource(about="Megatron-LM on 1 to 8 H100"),
    "korthikanti": PublishedSource(about="Megatron-LM on 8 to 512 A100"),
    "llm_foundry_a100": PublishedSource(about="FSDP on 8 to 128 A100"),
    "bloom": PublishedSource(about="Megatron-DeepSpeed on 320 and 384 A100"),
    "fms_a100": PublishedSource(about="full fine-tuning on 1 and 2 A100", origin="fms"),
    "fms_a100_moe": PublishedSource(about="fine-tuning of mixtures of experts on 1 to 8 A100", origin="fms"),
    "fms_a100_lora": PublishedSource(about="LoRA on 1 and 2 A100", fitted=False, origin="fms"),
    "fms_a100_4bit": PublishedSource(about="LoRA on 4-bit weights on 1 and 2 A100", fitted=False, origin="fms"),
    "aleph_alpha_8k": PublishedSource(about="LLaMA at 8k on 64 and 128 A100; it only judges", fitted=False),
    "ccl_search": PublishedSource(about="unknown models on A100-40GB; it only judges", fitted=False, known_model=False),
}
"""Sources by name, in the order of the tables. No coefficient is fitted to aleph_alpha_8k or ccl_search: their licences forbid it."""
FITTED = tuple(name for name, source in SOURCES.items() if source.fitted)
_LOADERS: tuple[Callable[[], pd.DataFrame], ...] = (
    nanotron_rows,
    megatron_rows,
    recomputation_rows,
    llm_foundry_rows,
    bloom_rows,
    fine_tuning_rows,
    expert_fine_tuning_rows,
    aleph_alpha_rows,
    tuning_trial_rows,
)


def all_rows() -> pd.DataFrame:
    """Return the rows of all sources, with the columns of `oppa.bench.published.columns`; raises EnvironmentLackingError."""
    return pd.concat([load() for load in _LOADERS], ignore_index=True)


def others_of(source: str) -> tuple[str, ...]:
    """Return the sources to which coefficients may be fitted, without a source and those of its origin."""
    origin = SOURCES[source].origin or source
    return tuple(name for name in FITTED if (SOURCES[name].origin or name) != origin)
