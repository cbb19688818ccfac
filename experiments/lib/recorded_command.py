"""Make the command line of an experiment whose runs are recorded: run the missing runs, then show the record.

Such an experiment, the module `experiments.NAME.experiment` or an object, has three functions:
    record(folder, repeats, tell) -> Path    run what the folder lacks, and write its page
    to_json(folder, tell) -> dict            return the figures of the record
    sections(folder) -> list[Section]        return the tables of the record
"""

import importlib
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
        from experiments.lib.result_output import print_result, print_written
        from oppa import catalog
        from oppa.cli.views.status import showing_status

        module, _, attribute = (experiment or f"experiments.{name.replace('-', '_')}.experiment").partition(":")
        made: Any = importlib.import_module(module)
        made = getattr(made, attribute) if attribute else made
        folder = (out or catalog.root() / "results" / name).resolve()
        if run:
            with showing_status() as tell:
                written = made.record(folder, repeats, tell)
            print_written(written)

        def figures() -> Any:
            with showing_status() as tell:
                return made.to_json(folder, tell)

        print_result(() if as_json else made.sections(folder), figures, as_json=as_json)

    command.__doc__ = about
    return command
