"""Render a table of `oppa profile` as one self-contained HTML page: its figure, and the fastest strategy at each batch size."""

import dataclasses
from pathlib import Path

from oppa.report import table_figure
from oppa.report.charts import Chart
from oppa.report.page import environment, head
from oppa.report.table import changes, facts, sections
from oppa.table import Table
from oppa.table.frontier import curves, standings


def render(folder: Path) -> str:
    """Return the page of the table in a folder; the same table gives the same text. Raises TableError if it is damaged."""
    table = Table.read(folder)
    known = curves(table)
    label = f"Throughput against batch size, for each strategy. {changes(standings(known))}".replace("`", "")
    caption = (
        "Bands hold 90% of the probability, hollow marks are predicted, and stars are the fastest at their batch size. "
        "At a dashed line another strategy becomes the fastest."
    )
    chart = Chart(svg=table_figure.throughput(known, description=label), caption=caption, data=table_figure.values(known, label=label))
    page = {
        **head(),
        "title": folder.resolve().name,
        "kind": "a table by oppa",
        "about": ["Throughput and memory at each batch size"],
        "headings": ("Table", "Throughput"),
        "facts": facts(table),
        "charts": [chart] if known else [],
        "sections": [dataclasses.replace(section, text=section.text.replace("`", "")) for section in sections(known)],
    }
    return environment().get_template("sections.html.j2").render(page)
