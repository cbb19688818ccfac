"""`oppa bench`: list the state of every record, and measure any figure again by the command of its benchmark."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.bench.registry import ALL, measured_inputs, quick
from oppa.bench.suites import SUITES
from oppa.cli.commands import (
    bench_ci,
    bench_cluster,
    bench_control,
    bench_goodput,
    bench_list,
    bench_norm_test,
    bench_pipelines,
    bench_policies,
    bench_schedule,
    bench_search,
    bench_service,
)
from oppa.cli.commands.bench_list import words

if TYPE_CHECKING:
    from oppa.report.record import Section

Repeats = Annotated[int, typer.Option(min=1, help="Measurements, or pairs of them.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")]
Tasks = Annotated[str | None, typer.Option(metavar="A,B,C", help="Run these of its tasks alone.")]

bench = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")
bench.command("search")(bench_search.search)
bench.command("ci")(bench_ci.ci)
bench.command("control")(bench_control.control)
bench.command("service")(bench_service.service)
bench.command("goodput")(bench_goodput.goodput)
bench.command("norm-test")(bench_norm_test.norm_test)
bench.command("policies")(bench_policies.policies)
bench.command("schedule")(bench_schedule.schedule)
bench.command("pipelines")(bench_pipelines.pipelines)
bench.command("cluster-sim")(bench_cluster.cluster_sim)


@bench.callback()
def _bench(
    context: typer.Context,
    stale: Annotated[bool, typer.Option("--stale", help="List only records that do not match their command.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON on stdout.")] = False,
) -> None:
    """List every benchmark: what it shows, where its record is, and whether the record still matches its command.

    A record matches if its arguments, tasks and input files are those that it was made from. `oppa bench all` measures.

    Exit codes: 0, or with --stale 4 where a record does not match.
    """
    if context.invoked_subcommand is None:
        bench_list.show(stale=stale, as_json=as_json)


@bench.command(ALL)
def _all(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
    """Measure all that takes seconds: help, prior, start-up and machine."""
    _measure(quick(), repeats, out, as_json=as_json)


def _measuring(name: str) -> Callable[..., None]:
    def command(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
        _measure([name], repeats, out, as_json=as_json)

    def of_tasks(repeats: Repeats = 7, tasks: Tasks = None, out: Out = None, as_json: AsJson = False) -> None:
        _measure([name], repeats, out, as_json=as_json, tasks=words(tasks))

    return of_tasks if SUITES[name].tasks else command


for _name, _suite in SUITES.items():
    bench.command(_name, help=f"{_suite.about[0].upper()}{_suite.about[1:]}.")(_measuring(_name))


def _measure(names: Sequence[str], repeats: int, out: Path | None, *, as_json: bool, tasks: Sequence[str] | None = None) -> None:
    from oppa.cli.views import style
    from oppa.report.record import provenance, write_record

    inputs = measured_inputs(names, repeats, tasks)
    sections: list[Section] = []
    figures: dict[str, object] = {}
    for name in names:
        suite = SUITES[name]
        extent = (repeats, tasks or suite.tasks) if suite.tasks else (repeats,)
        with style.err().status(f"{name}: {suite.about}"):
            if not as_json or out or not suite.to_json:
                sections += (made := suite.run(*extent))
            if as_json:
                figures |= suite.to_json(*extent) if suite.to_json else {name: [dataclasses.asdict(section) for section in made]}
        for section in [] if as_json else made:
            style.print_section(section)
    if as_json:
        typer.echo(json.dumps({**figures, "environment": provenance()}, indent=1))
    if out:
        drawn = {} if tasks else {file: svg for name in names for file, svg in SUITES[name].figures(repeats).items()}
        style.err().print(f"written: {write_record(out, 'Benchmarks', sections, figures=drawn, inputs=inputs)}", markup=False)
