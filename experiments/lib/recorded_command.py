"""Make the command line of an experiment whose runs are recorded: run the missing runs, then show the record.

Such an experiment, the module `experiments.NAME.experiment` or an object, has three functions:
    record(folder, repeats, tell) -> Path    run what the folder lacks, and write its page
    to_json(folder, tell) -> dict            return the figures of the record
    sections(folder) -> list[Section]        return the tables of the record
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def recorded_command(
    name: str, about: str, *, run: str, unit: str, counts: str, usual: int, json_help: str = "", experiment: str = ""
) -> Callable[..., None]:
    """Return the command line of one experiment.

    Args:
        name: Name of the experiment; its record is in `results/NAME`.
        about: Help of the command.
        run: Help of `--run`: how long it takes, and what it requires.
        unit: Name of the option that counts repetitions, `seeds` or `rounds`.
        counts: Help of that option.
        usual: Repetitions by default.
        json_help: Help of `--json`, if it measures more.
        experiment: Module and object, `module:NAME`, if the experiment is not the module of its name.
    """
    out_help = f"Folder of the recorded runs and of the page; results/{name} by default."

    def command(
        run: Annotated[bool, typer.Option("--run", help=run)] = False,
        repeats: Annotated[int, typer.Option(f"--{unit}", min=1, help=counts)] = usual,
        out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=out_help)] = None,
        as_json: Annotated[bool, typer.Option("--json", help=json_help or "Print the figures as JSON on stdout.")] = False,
    ) -> None:
        from oppa import catalog
        from oppa.cli.views import style
        from oppa.cli.views.status import showing_status

        module, _, attribute = (experiment or f"experiments.{name.replace('-', '_')}.experiment").partition(":")
        made: Any = importlib.import_module(module)
        made = getattr(made, attribute) if attribute else made
        folder = (out or catalog.root() / "results" / name).resolve()
        if run:
            with showing_status() as tell:
                written = made.record(folder, repeats, tell)
            style.err().print(f"written: {written}", markup=False)
        if as_json:
            with showing_status() as tell:
                figures = made.to_json(folder, tell)
            typer.echo(json.dumps(figures, indent=1))
            return
        for section in made.sections(folder):
            style.print_section(section)

    command.__doc__ = about
    return command
