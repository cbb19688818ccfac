"""Measure the extra time of `oppa --help` over a typer program with two empty commands."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.timings.interleaved import Measure, compared
from oppa.report.record import Section

BARE = """\
import typer

app = typer.Typer()


@app.command()
def tune(job: str) -> None:
    "Tune a job."


@app.command()
def show(study: str) -> None:
    "Show a study."


app()
"""


def help_overhead(repeats: int) -> list[Section]:
    """Measure the wall-clock seconds of both programs' --help, alternately."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        ours, theirs = _timed(sys.executable, "-m", "oppa", "--help"), _timed(sys.executable, str(bare), "--help")
        names = ("`oppa --help`", "bare typer program", "difference")
        rows, extra_s = compared(ours, theirs, repeats, names=names, by=lambda own_s, bare_s: own_s - bare_s)
    text = f"{repeats} pairs in turn; `oppa --help` adds {extra_s:.3f} s (median; the target is at most 0.1 s)."
    return [Section(title="Help", text=text, columns=("program", "seconds: median (min - max)"), rows=rows)]


def _timed(*argv: str) -> Measure:
    def measure() -> float:
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        return time.perf_counter() - start

    return measure
