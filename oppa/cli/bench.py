"""`oppa bench`: oppa against what it replaces, side by side in one run; every figure can be measured again by its command."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.bench.suites import SUITES
from oppa.cli import (
    bench_ci,
    bench_cluster,
    bench_control,
    bench_goodput,
    bench_norm_test,
    bench_pipelines,
    bench_policies,
    bench_schedule,
    bench_search,
    bench_service,
)

if TYPE_CHECKING:
    from oppa.report.record import Section

Repeats = Annotated[int, typer.Option(min=2, help="Measurements, or pairs of them.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")]

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
def _bench(context: typer.Context, repeats: Repeats = 7, out: Out = None) -> None:
    """Measure oppa against what it replaces, side by side; without a name, all that takes seconds."""
    if context.invoked_subcommand is None:
        _measure([name for name, suite in SUITES.items() if not suite.when_named], repeats, out)


def _measuring(name: str) -> Callable[..., None]:
    def command(repeats: Repeats = 7, out: Out = None) -> None:
        _measure([name], repeats, out)

    def with_json(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
        _measure([name], repeats, out, as_json=as_json)

    return command if SUITES[name].to_json is None else with_json


for _name, _suite in SUITES.items():
    bench.command(_name, help=f"{_suite.about[0].upper()}{_suite.about[1:]}.")(_measuring(_name))


def _measure(names: Sequence[str], repeats: int, out: Path | None, *, as_json: bool = False) -> None:
    from oppa.cli import style
    from oppa.report.record import write_record

    sections: list[Section] = []
    for name in names:
        with style.err().status(f"{name}: {SUITES[name].about}"):
            made = SUITES[name].run(repeats) if out or not as_json else []
        for section in [] if as_json else made:
            style.print_section(section)
        sections += made
        if as_json:
            _print_json(name, repeats)
    if out:
        figures = {file: svg for name in names for file, svg in SUITES[name].figures(repeats).items()}
        style.err().print(f"written: {write_record(out, 'Benchmarks', sections, figures=figures)}", markup=False)


def _print_json(name: str, repeats: int) -> None:
    import json

    from oppa.cli import style
    from oppa.report.record import provenance

    to_json = SUITES[name].to_json
    assert to_json is not None, "only such a benchmark has --json"
    with style.err().status(f"{name}: {SUITES[name].about}"):
        figures = to_json(repeats)
    typer.echo(json.dumps({**figures, "environment": provenance()}, indent=1))
