"""Measure how much sooner Transformers' `Trainer` reaches a loss under each policy (COPUS, table 1)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import begin
from experiments.trainers_goodput import page
from experiments.trainers_goodput import run as runs
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section


def record(folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
    """Train what the folder lacks, and write the page."""
    begin(folder, inputs("trainers-goodput", seeds=seeds))
    runs.run(folder, catalog.root() / "runs" / "trainers-goodput", range(seeds), tell)
    return written_page(folder, page.page(folder))


def to_json(folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the headline figures, as fractions."""
    return page.to_json(page.TrainerResults.read(folder), folder)


def sections(folder: Path) -> list[Section]:
    """Return the tables of the page."""
    return page.sections(folder)
