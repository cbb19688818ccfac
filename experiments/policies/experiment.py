"""Compare all policies on one job with uneven workers (DYNAMIX, section VI)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import begin
from experiments.policies import page, variations
from experiments.policies import run as runs
from experiments.policies.measured import decision_ms, norm_test_overhead, weighted_gradient_error
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section


def record(folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
    """Train what the folder lacks, variations included, and write the page."""
    begin(folder, inputs("policies", seeds=seeds))
    for part in (runs, variations):
        part.run(folder, catalog.root() / "runs" / "policies", range(seeds), tell)
    return written_page(folder, page.page(folder))


def to_json(folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the headline figures, and measure the cost of decisions."""
    results = page.PolicyResults.read(folder)
    measured = {
        "norm_test_overhead": norm_test_overhead(tell),
        "rl_decision_ms": decision_ms(),
        "weighted_gradient_error": weighted_gradient_error(),
    }
    return {**page.to_json(results, folder), **measured}


def sections(folder: Path) -> list[Section]:
    """Return the tables of the page."""
    page.PolicyResults.read(folder)
    return page.sections(folder)
