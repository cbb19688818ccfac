"""Print the ranking of `oppa predict`, as a table or as JSON."""

import itertools
import json
from typing import TYPE_CHECKING

import typer

from oppa.cli.views import style
from oppa.cli.views.summary import HEAD, job_line
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *((">rank", False), ("configuration", True), (">steps/s", True), (">step time", False), ("90%", False)),
    *((">memory", True), ("90%", False), (">fits", True), (">alike", True)),
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
    """Print the job, and a table of the first configurations that are predicted to fit; a narrow terminal gets fewer columns.

    Configurations with the same prediction share a row, as where they differ in parameters that the prior does not cover.
    """
    fitting = ranked[ranked["fits"]]
    space = f"[bold]space[/]  {len(ranked)} valid configurations, {len(fitting)} of them predicted to fit"
    style.print_rows(style.out(), [job_line(problem), space, "[bold]prior[/]  without a measurement"], HEAD)
    if not len(fitting):
        return
    alike, ranks = fitting.groupby(list(fitting.columns), sort=False).ngroup(), range(1, len(fitting) + 1)
    sizes, first = alike.map(alike.value_counts()), ~alike.duplicated()
    is_narrow = style.out().width < WIDE
    shown = [in_narrow or not is_narrow for _, in_narrow in COLUMNS[:-1]] + [bool((sizes > 1).any())]
    table = style.table([name for name, _ in itertools.compress(COLUMNS, shown)])
    rows = zip(ranks, fitting.index, sizes, fitting.to_dict("records"), strict=True)
    for rank, index, size, row in itertools.islice(itertools.compress(rows, first), limit):
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
            str(size),
        )
        table.add_row(*itertools.compress(cells, shown))
    style.out().print(table)
