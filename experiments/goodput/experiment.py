"""Measure how much sooner each policy reaches a target loss (COPUS, section 6)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.goodput import page, restarts
from experiments.goodput import run as runs
from experiments.goodput.sections import change_section, time_section
from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import begin
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section


def record(folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
    """Train what the folder lacks, measure the restarts that compare with layout changes, and write the page."""
    begin(folder, inputs("goodput", seeds=seeds))
    runs.run(folder, catalog.root() / "runs" / "goodput", range(seeds), tell)
    restarts.record(folder, page.comparison_of(folder), tell)
    return written_page(folder, page.page(folder))


def to_json(folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the headline figures, as fractions."""
    return page.to_json(page.comparison_of(folder), folder)


def sections(folder: Path) -> list[Section]:
    """Return the times to the target losses, and the layout changes."""
    comparison = page.comparison_of(folder)
    return [time_section(comparison, "clock_s", page.TITLE), change_section(comparison, restarts.recorded(folder))]
