"""Print the ranking of `oppa predict`, as a table or as JSON."""

import json
from typing import TYPE_CHECKING

import typer

from oppa.cli.views import style
from oppa.cli.views.summary import job_line
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *((">rank", False), ("configuration", True), (">steps/s", True), (">step time", False), ("90%", False)),
    *((">memory", True), ("90%", False), (">fits", True)),
)
"""Titles of columns, and whether a narrow terminal has them."""
WIDE = 110
"""Characters from which a terminal has all columns."""


def print_json_lines(ranked: "pd.DataFrame", candidates: Candidates) -> None:
    """Print every configuration with its prediction as JSON, one a line."""
    for index, predicted in zip(ranked.index, ranked.to_dict("records"), strict=True):
        configuration = candidates.configuration(index)
        typer.echo(json.dumps({"id": configuration.id, **configuration.to_dict(), **predicted}))


def print_ranking(ranked: "pd.DataFrame", candidates: Candidates, problem: Problem, limit: int) -> None:
    """Print the job, and a table of the first configurations that are predicted to fit; a narrow terminal gets fewer columns."""
    fitting = ranked[ranked["fits"]]
    style.out().print(
        f"{job_line(problem)}\n"
        f"[bold]space[/]  {len(ranked)} valid configurations, {len(fitting)} of them predicted to fit\n"
        f"[bold]prior[/]  without a measurement\n"
    )
    if not len(fitting):
        return
    is_narrow = style.out().width < WIDE
    table = style.table([name for name, in_narrow in COLUMNS if in_narrow or not is_narrow])
    for rank, (index, row) in enumerate(zip(fitting.index[:limit], fitting.to_dict("records"), strict=False), start=1):
        seconds, needed = row["predicted_step_time_s"], row["predicted_memory_bytes"]
        cells = (
            str(rank),
            f"[cyan]{candidates.configuration(index).id}[/]",
            style.number(1 / seconds),
            format_seconds(seconds),
            style.interval(row["predicted_step_time_low_s"], row["predicted_step_time_high_s"], format_seconds),
            format_bytes(needed),
            style.interval(row["predicted_memory_low_bytes"], row["predicted_memory_high_bytes"], format_bytes),
            style.probability(row["probability_fits"]),
        )
        table.add_row(*(cell for cell, (_, in_narrow) in zip(cells, COLUMNS, strict=True) if in_narrow or not is_narrow))
    style.out().print(table)
