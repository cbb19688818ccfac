"""Measure how much sooner each policy reaches a target loss (COPUS, section 6): a small GPT on real text, on four emulated hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.goodput import page, restarts
from experiments.goodput.sections import change_section, time_section
from experiments.goodput.variants import variants
from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import Recorder, begin
from experiments.lib.variants import rotated
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section

HOSTS = ("--hosts", "4", "--cpus-per-rank", "0.45", "--racks", "2", "--bandwidth", "800mbit", "--uplink", "460mbit", "--latency", "1ms")
BATCHES = (8, 12, 16, 24, 32, 48, 64, 96)
"""Global batches of the table, in sequences; adaptive variants begin with the first."""
STATIC = (16, 32, 64)
"""Static batches, each in its fastest layout. In a pilot, a batch of 8 reached a loss of 1.9 after 68 seconds, and one of 16 after 59."""


def record(folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
    """Train what the folder lacks, measure the restarts that compare with layout changes, and write the page."""
    begin(folder, inputs("goodput", seeds=seeds))
    job, work = Path("examples", "goodput.toml"), catalog.root() / "runs" / "goodput"
    recorder = Recorder(job=job, folder=folder, work=work, hosts=HOSTS, tell=tell)
    every = variants(recorder.table(BATCHES), BATCHES[0], BATCHES[-1], static=STATIC)
    for seed in range(seeds):
        for variant in rotated(every, seed):
            recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy)
    restarts.record(folder, page.comparison_of(folder), tell)
    return written_page(folder, page.page(folder))


def to_json(folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the headline figures, as fractions."""
    return page.to_json(page.comparison_of(folder), folder)


def sections(folder: Path) -> list[Section]:
    """Return the times to the target losses, and the layout changes."""
    comparison = page.comparison_of(folder)
    return [time_section(comparison, "clock_s", page.TITLE), change_section(comparison, restarts.recorded(folder))]
