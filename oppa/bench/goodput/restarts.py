"""The changes of layout that our policy chose, by an ordinary restart (COPUS, table 2): measured beside the same change in process.

Restarts are measured without the slow lines between hosts, and on whole processors: in the runs they would have taken longer.
"""

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from oppa.bench.goodput.sections import Comparison, changes_of
from oppa.bench.resharding import COLD, speedups
from oppa.problem.model import Model
from oppa.report.record import provenance
from oppa.table import Table
from oppa.trials.wire import write_json

RECORD = "restarts.json"
REPEATS = 5


def measure(comparison: Comparison, table: Table, tell: Callable[[str], None]) -> dict[str, object]:
    """Seconds of a cold restart for each change of layout that was chosen in any run, and where they come from."""
    known = {(row.configuration.id, row.configuration.global_batch): row.configuration for row in table.rows}
    chosen = {change.words: (known[change.before], known[change.after]) for change in changes_of(comparison)}
    found = speedups(REPEATS, tell, list(chosen.values()), Model(**table.origin.problem["model"]))
    return {"origin": provenance(), "cold_s": {words: each.seconds(COLD) for words, each in zip(chosen, found, strict=True)}}


def recorded(folder: Path) -> Mapping[str, float]:
    """Median seconds of a restart by change; empty before they are measured."""
    path = folder / RECORD
    if not path.exists():
        return {}
    return {words: statistics.median(seconds) for words, seconds in json.loads(path.read_text())["cold_s"].items()}


def record(folder: Path, comparison: Comparison, tell: Callable[[str], None]) -> None:
    """Measure what is not recorded yet."""
    if not {change.words for change in changes_of(comparison)} <= recorded(folder).keys():
        write_json(folder / RECORD, measure(comparison, Table.read(folder / "table"), tell))
