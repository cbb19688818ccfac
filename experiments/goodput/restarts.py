"""Measure an ordinary restart for each layout change that our policy chose (COPUS, table 2), to compare with the change in process.

Restarts are measured without the slow links between hosts, and with whole CPU cores; in the runs they would have taken longer.
"""

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.control.resharding import COLD, speedups
from experiments.goodput.sections import GoodputComparison, changes_of
from oppa.problem.model import Model
from oppa.report.record import provenance
from oppa.table import Table
from oppa.trials.trial_folder import write_json

RECORD = "restarts.json"
REPEATS = 5


def measure(comparison: GoodputComparison, table: Table, tell: Callable[[str], None]) -> dict[str, object]:
    """Return the seconds of a cold restart for each layout change of any run, and their provenance."""
    known = {(row.configuration.id, row.configuration.global_batch): row.configuration for row in table.rows}
    chosen = {change.words: (known[change.before], known[change.after]) for change in changes_of(comparison)}
    found = speedups(REPEATS, tell, list(chosen.values()), Model(**table.origin.problem["model"]))
    return {"origin": provenance(), "cold_s": {words: each.seconds(COLD) for words, each in zip(chosen, found, strict=True)}}


def recorded(folder: Path) -> Mapping[str, float]:
    """Return the median seconds of a restart by change; empty if they are not measured."""
    path = folder / RECORD
    if not path.exists():
        return {}
    return {words: statistics.median(seconds) for words, seconds in json.loads(path.read_text())["cold_s"].items()}


def record(folder: Path, comparison: GoodputComparison, tell: Callable[[str], None]) -> None:
    """Measure all restarts, unless every change is recorded."""
    if not {change.words for change in changes_of(comparison)} <= recorded(folder).keys():
        write_json(folder / RECORD, measure(comparison, Table.read(folder / "table"), tell))
