"""Write the page of the real experiment from the recorded runs in the same folder."""

import dataclasses
from pathlib import Path
from typing import Any

from experiments.goodput import restarts
from experiments.goodput.figures import all_figures
from experiments.goodput.sections import GoodputComparison, change_section, seed_section, table_section, time_section
from experiments.lib.recorded_page import Page, page_of
from experiments.lib.run_trace import facts_of, pooled, read_runs, recorded
from oppa.table import Table

TARGETS = (1.9, 1.85, 1.8, 1.75, 1.7)
"""Losses per byte, from the second half of our policy's run. Pilots and shorter runs with the first seed set them.

Down to a loss of 2, a static batch of 32 is as fast. Small batches learn more from a sequence, but in this job they see correspondingly
fewer sequences (figure 9 shows the whole course).
"""
TITLE = "Time to loss: recorded step times, and what changes took (table 1)"
WINDOW = 1024
COMMAND = "oppa bench goodput --run"


def comparison_of(folder: Path) -> GoodputComparison:
    """Return the comparison of all recorded runs in a folder; raises InputError if there are none."""
    return GoodputComparison(read_runs(folder, COMMAND), TARGETS, WINDOW)


def to_json(comparison: GoodputComparison, folder: Path) -> dict[str, Any]:
    """Return the headline figures and their provenance."""
    found = comparison.gains()
    return {
        **comparison.figures,
        "targets": list(TARGETS),
        "gains": found.medians,
        "best_others": list(found.rivals),
        "seeds": comparison.seeds,
        **facts_of(folder, recorded(folder, COMMAND)),
    }


def page(folder: Path) -> Page:
    """Return the page and its figures."""
    comparison, title = comparison_of(folder), "Time to loss: a small GPT on real text, four hosts that one machine plays"
    steady = dataclasses.replace(comparison, traces=pooled(comparison.traces))
    sections = [
        table_section(Table.read(folder / "table")),
        time_section(comparison, "clock_s", TITLE),
        seed_section(comparison),
        time_section(steady, "clock_s", "Time to loss: the same, each step as long as its like in the median over all runs"),
        time_section(comparison, "elapsed_s", "Time to loss: wall clock"),
        change_section(comparison, restarts.recorded(folder)),
    ]
    return page_of(folder, COMMAND, title, sections, all_figures(comparison))
