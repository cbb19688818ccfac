"""Compare real runs of pipelines with their predictions (FlexTrain, section 5)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.pipelines import elastic, page
from experiments.pipelines.run import Measured, measure, read, write
from oppa.bench.registry import inputs
from oppa.report.record import Section


def record(folder: Path, rounds: int, tell: Callable[[str], None]) -> Path:
    """Run the pipelines, and write the measurements and the page."""
    layouts, balance = measure(rounds, tell)
    found = Measured(rounds=layouts, balance=balance, elastic=elastic.measure(tell))
    write(folder, found)
    return page.write_page(folder, found, inputs("pipelines", rounds=rounds))


def to_json(folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the errors of the predictions."""
    return page.to_json(read(folder))


def sections(folder: Path) -> list[Section]:
    """Return the tables of the page."""
    return page.sections(read(folder))
