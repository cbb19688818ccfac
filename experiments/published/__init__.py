"""Read published measurements as rows for `predict_rows`. They are in a local folder, but for figures of projects' own pages.

sources     all sources, and what each may be used for
megatron, aleph_alpha, llm_foundry, fine_tuning, tuning_trials, all_reduces
            one reader each: its docstring states what is assumed about the runs, and why
dimensions  the dimensions of their models
performance_pages, bloom
            the figures that projects publish on their own pages; they are part of this project

`oppa.bench.published` has the files, the columns of a row, and the reader of nanotron's runs, which `oppa bench search` needs too.
"""

from experiments.published.all_reduces import all_reduces
from experiments.published.megatron import megatron_rows, recomputation_rows
from experiments.published.sources import FITTED, SOURCES, all_rows, others_of
from oppa.bench.published.columns import DEVICE, DIMENSIONS, OUT_OF_MEMORY, RAN
from oppa.bench.published.files import ALL_REDUCES, FILES, NANOTRON, RECOMPUTATION, missing
from oppa.bench.published.nanotron import nanotron_rows

__all__ = [
    "ALL_REDUCES",
    "DEVICE",
    "DIMENSIONS",
    "FILES",
    "FITTED",
    "NANOTRON",
    "OUT_OF_MEMORY",
    "RAN",
    "RECOMPUTATION",
    "SOURCES",
    "all_reduces",
    "all_rows",
    "megatron_rows",
    "missing",
    "nanotron_rows",
    "others_of",
    "recomputation_rows",
]
