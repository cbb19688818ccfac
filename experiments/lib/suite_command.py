"""Make the command lines of the suites: run each, print its figures, and write its record."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.lib.suite import Suite
from oppa.bench.declared import joined
from oppa.errors import EnvironmentLackingError

if TYPE_CHECKING:
    from oppa.report.inputs import Inputs
    from oppa.report.record import Section

Repeats = Annotated[int, typer.Option(min=1, help="Measurements, or pairs of them.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")]
Tasks = Annotated[str | None, typer.Option(metavar="A,B,C", help="Run these of its tasks alone.")]


def suite_command(name: str, suite: Suite) -> Callable[..., None]:
    """Return the command line of one suite."""

    def measure(repeats: int, out: Path | None, *, as_json: bool, tasks: Sequence[str] | None = None) -> None:
        found = suite.declared if tasks is None else suite.declared.only(tasks)
        inputs = found.inputs(**({"repeats": repeats} if suite.repeated else {}))
        _measure({name: suite}, repeats, out, inputs, as_json=as_json, tasks=tasks)

    def command(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
        measure(repeats, out, as_json=as_json)

    def of_tasks(repeats: Repeats = 7, tasks: Tasks = None, out: Out = None, as_json: AsJson = False) -> None:
        from oppa.cli.commands.bench_list import words

        measure(repeats, out, as_json=as_json, tasks=words(tasks))

    made = of_tasks if suite.tasks else command
    made.__doc__ = f"{suite.about[0].upper()}{suite.about[1:]}."
    return made


def together_command(suites: Mapping[str, Suite]) -> Callable[..., None]:
    """Return the command line that runs several suites, and writes one record."""

    def command(repeats: Repeats = 7, out: Out = None, as_json: AsJson = False) -> None:
        inputs = joined(suite.declared for suite in suites.values()).inputs(benchmarks=list(suites), repeats=repeats)
        _measure(suites, repeats, out, inputs, as_json=as_json)

    command.__doc__ = f"Measure all that takes seconds: {', '.join(suites)}."
    return command


def _measure(
    suites: Mapping[str, Suite], repeats: int, out: Path | None, inputs: "Inputs", *, as_json: bool, tasks: Sequence[str] | None = None
) -> None:
    from experiments.lib.result_output import print_written
    from oppa.cli.views import style
    from oppa.report.record import Section, provenance, write_record

    sections, figures = list[Section](), dict[str, object]()
    for name, suite in suites.items():
        with style.err().status(f"{name}: {suite.about}"):
            made = suite.sections(repeats, tasks) if not as_json or out or not suite.to_json else ()
            if as_json:
                figures |= suite.json_figures(repeats, tasks) if suite.to_json else {name: [dataclasses.asdict(each) for each in made]}
        sections += made
        for section in () if as_json else made:
            style.print_section(section)
    if out:
        _require_data(out, sections)
    if as_json:
        style.print_json({**figures, "environment": provenance()})
    if out:
        drawn = {} if tasks else {file: svg for suite in suites.values() for file, svg in suite.drawn(repeats).items()}
        print_written(write_record(out, "Benchmarks", sections, figures=drawn, inputs=inputs))


def _require_data(out: Path, sections: Sequence["Section"]) -> None:
    """Raise EnvironmentLackingError if a section without its data would replace a record."""
    from experiments.lib.prediction_error import SKIPPED
    from oppa.catalog import data_folder
    from oppa.report.record import RECORD

    if any(section.title.endswith(SKIPPED) for section in sections) and (out / RECORD).exists():
        message = f"`{out / RECORD}` stays, since `{data_folder()}` lacks data of this benchmark"
        raise EnvironmentLackingError(message, hint="set OPPA_DATA to the folder of the data, or name another folder with `--out`")
