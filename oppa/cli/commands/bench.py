"""`oppa bench`: list the state of every record, and measure any figure again by the command of its benchmark."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.bench import checkout
from oppa.bench.registry import ALL, measured_inputs, short, suites
from oppa.cli.commands import bench_ci, bench_list, bench_search
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
for _name, _command in checkout.commands().items():
    bench.command(_name)(_command)


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
    _measure(short(), repeats, out, as_json=as_json)


def _measuring(name: str) -> Callable[..., None]:
    def command(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
        _measure([name], repeats, out, as_json=as_json)

    def of_tasks(repeats: Repeats = 7, tasks: Tasks = None, out: Out = None, as_json: AsJson = False) -> None:
        _measure([name], repeats, out, as_json=as_json, tasks=words(tasks))

    return of_tasks if suites()[name].tasks else command


for _name, _suite in suites().items():
    bench.command(_name, help=f"{_suite.about[0].upper()}{_suite.about[1:]}.")(_measuring(_name))


def _refusing(name: str) -> Callable[[], None]:
    def command() -> None:
        checkout.require_checkout(name)

    return command


for _name in () if checkout.is_checkout() else checkout.NAMES:
    bench.command(
        _name,
        help="An experiment of the papers; it needs a checkout.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_refusing(_name))


def _measure(names: Sequence[str], repeats: int, out: Path | None, *, as_json: bool, tasks: Sequence[str] | None = None) -> None:
    from oppa.cli.views import style
    from oppa.report.record import provenance, write_record

    inputs = measured_inputs(names, repeats, tasks)
    sections: list[Section] = []
    figures: dict[str, object] = {}
    for name in names:
        suite = suites()[name]
        with style.err().status(f"{name}: {suite.about}"):
            if not as_json or out or not suite.to_json:
                sections += (made := suite.sections(repeats, tasks))
            if as_json:
                figures |= suite.json_figures(repeats, tasks) if suite.to_json else {name: [dataclasses.asdict(each) for each in made]}
        for section in [] if as_json else made:
            style.print_section(section)
    if as_json:
        typer.echo(json.dumps({**figures, "environment": provenance()}, indent=1))
    if out:
        drawn = {} if tasks else {file: svg for name in names for file, svg in suites()[name].drawn(repeats).items()}
        style.err().print(f"written: {write_record(out, 'Benchmarks', sections, figures=drawn, inputs=inputs)}", markup=False)
