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


def print_json_lines(ranked: "pd.DataFrame", candidates: Candidates) -> None:
    """Print every configuration with its prediction as JSON, one a line."""
    for index, predicted in zip(ranked.index, ranked.to_dict("records"), strict=True):
        configuration = candidates.configuration(index)
        typer.echo(json.dumps({"id": configuration.id, **configuration.to_dict(), **predicted}))


def print_ranking(ranked: "pd.DataFrame", candidates: Candidates, problem: Problem, limit: int) -> None:
    """Print the job, and a table of the first configurations that are predicted to fit."""
    fitting = ranked[ranked["fits"]]
    style.out().print(
        f"{job_line(problem)}\n"
        f"[bold]space[/]  {len(ranked)} valid configurations, {len(fitting)} of them predicted to fit\n"
        f"[bold]prior[/]  without a measurement; results/prior/table.md lists its errors\n"
    )
    table = style.table((">rank", "configuration", ">steps/s", ">step time", "90%", ">memory", "90%", ">fits"))
    for rank, (index, row) in enumerate(zip(fitting.index[:limit], fitting.to_dict("records"), strict=False), start=1):
        seconds, needed = row["predicted_step_time_s"], row["predicted_memory_bytes"]
        table.add_row(
            str(rank),
            f"[cyan]{candidates.configuration(index).id}[/]",
            style.number(1 / seconds),
            format_seconds(seconds),
            style.interval(row["predicted_step_time_low_s"], row["predicted_step_time_high_s"], format_seconds),
            format_bytes(needed),
            style.interval(row["predicted_memory_low_bytes"], row["predicted_memory_high_bytes"], format_bytes),
            style.probability(row["probability_fits"]),
        )
    if len(fitting):
        style.out().print(table)
