"""The page of the real experiment: everything on it comes from the records of the runs beside it."""

import dataclasses
from pathlib import Path
from typing import Any

from oppa.bench.goodput import restarts
from oppa.bench.goodput.figures import all_figures
from oppa.bench.goodput.sections import Comparison, change_section, seed_section, table_section, time_section
from oppa.bench.tracks import Track, facts_of, pooled, recorded
from oppa.report.figures import standalone
from oppa.report.record import markdown, write_texts
from oppa.table import Table

RECORD = Path("results", "goodput")
TARGETS = (1.9, 1.85, 1.8, 1.75, 1.7)
"""Losses per byte, over the second half of our policy's run. Down to 2, a static batch of 32 is as fast: small batches learn more from a
sequence, and here see as much fewer of them (figure 9 has the whole way). Set by pilots and by shorter runs with the first seed."""
TITLE = "Time to loss: recorded step times, and what changes took (table 1)"
WINDOW = 1024
PAGE, COMMAND = "README.md", "oppa bench goodput --run"


def comparison_of(folder: Path) -> Comparison:
    """Of all that is recorded there; raises InputError if that is nothing."""
    return Comparison([Track.read(path) for path in recorded(folder, COMMAND)], TARGETS, WINDOW)


def to_json(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """The headlines, and where they come from."""
    found = comparison.gains()
    return {
        **comparison.figures,
        "targets": list(TARGETS),
        "gains": found.medians,
        "best_others": list(found.rivals),
        "seeds": comparison.seeds,
        **facts_of(folder, recorded(folder, COMMAND)),
    }


def write_page(folder: Path) -> Path:
    """Write the page and its figures beside the runs."""
    text, figures = page(folder)
    write_texts(folder, {**figures, PAGE: text})
    return folder / PAGE


def page(folder: Path) -> tuple[str, dict[str, str]]:
    """The page in Markdown and its figures as SVG by file name: the same runs give the same bytes."""
    comparison = comparison_of(folder)
    steady = dataclasses.replace(comparison, tracks=pooled(comparison.tracks))
    found, figures = to_json(comparison, folder), all_figures(comparison)
    facts = {
        **found["origin"],
        "versions": "; ".join(found["versions"]),
        "raw log": f"`runs/`, {found['runs']} runs, SHA-256 `{found['raw_log_sha256']}`",
    }
    sections = [
        table_section(Table.read(folder / "table")),
        time_section(comparison, "clock_s", TITLE),
        seed_section(comparison),
        time_section(steady, "clock_s", "Time to loss: the same, each step as long as its like in the median over all runs"),
        time_section(comparison, "elapsed_s", "Time to loss: wall clock"),
        change_section(comparison, restarts.recorded(folder)),
    ]
    parts = [
        "# Time to loss: a small GPT on real text, four hosts that one machine plays\n",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n",
        *(f"## {section.title}\n\n{section.text}\n\n{markdown(section.columns, section.rows)}" for section in sections),
        *(f"![{caption}]({name})\n\n{caption}.\n" for name, (caption, _) in figures.items()),
    ]
    return "\n".join(parts), {name: standalone(svg) for name, (_, svg) in figures.items()}
