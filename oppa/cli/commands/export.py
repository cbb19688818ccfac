"""`oppa export STUDY --to deepspeed`: write a configuration as a framework's own files, ready to run; or a run's weights."""

from pathlib import Path
from typing import Annotated

import typer

from oppa.cli.job_options import Changes

SOURCE = (
    "Folder of a study, to export its winner; its best/configuration.json; or a job file. For weights, the folder of a run, whose newest"
    " checkpoint is exported, or of a checkpoint."
)
CONFIGURATION = "Another configuration: an id, `dp=2,micro_batch=4` with the rest at its defaults, or a JSON file."
FORMAT = (
    "Format of the files: torchrun, kubernetes, deepspeed, colossalai, megatron, megatron-bridge, torchtitan, accelerate, transformers or"
    " lightning. For weights: huggingface or dcp."
)
OUT = "Folder of the files. The default is STUDY/best/FORMAT, FORMAT next to a JSON file, JOB-FORMAT here, or RUN/exports/FORMAT-STEP."
JSON = "Print JSON: the files of a configuration by name, and write none; or the paths of written weights."

WEIGHTS = {"huggingface": ("config.json", "model*.safetensors", "model.safetensors.index.json"), "dcp": (".metadata", "*.distcp")}
"""Formats of weights, and their files."""


def export(
    source: Annotated[Path, typer.Argument(metavar="STUDY|JOB|RUN", help=SOURCE, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="CONFIGURATION", help=CONFIGURATION, show_default=False)] = "",
    to: Annotated[str, typer.Option(metavar="FORMAT", help=FORMAT)] = "torchrun",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Write a configuration as files of a framework, or a run's weights. An error names anything that the format cannot express.

    Exit codes: 0 written, 2 wrong input, 3 environment lacking.
    """
    from oppa.cli.views import style
    from oppa.errors import InputError
    from oppa.report.record import written
    from oppa.tuning.export_best import write_files
    from oppa.tuning.formats import export as exported
    from oppa.tuning.formats import format_named
    from oppa.tuning.formats.launch import NOT_OWN, SCRIPT
    from oppa.tuning.resolve_configuration import resolve_configuration
    from oppa.tuning.session import file_name

    if to in WEIGHTS:
        files_of_weights = _weights(source, to, out, force=force, changed=bool(setting or changes))
        if as_json:
            style.print_json({"files": [str(file) for file in files_of_weights]})
        else:
            typer.echo("\n".join(map(str, files_of_weights)))
        return
    format_named(to)
    problem, configuration = resolve_configuration(source, setting, changes=changes or ())
    if configuration is None:
        hint = f"name one: `oppa export {source} dp=2,micro_batch=4`; or export the winner of a study"
        raise InputError(f"the job `{source}` has many configurations, and no `[baseline]`", hint=hint)
    files = exported(to, problem, configuration)
    if as_json:
        style.print_json(files)
        return
    folder = out or _folder(source, setting, f"{file_name(problem.name)}-{to}", to)
    if not force:
        _require_free(folder, files)
    with written(folder):
        write_files(folder, files)
    style.err().print(f"{configuration.id} for {to}:", markup=False)
    for name in files:
        typer.echo(folder / name)
    if NOT_OWN in files.get(SCRIPT, ""):
        style.err().print(f"[yellow]note[/]: `{SCRIPT}` needs a program that reads these files. {NOT_OWN}")


def _folder(source: Path, setting: str, name: str, to: str) -> Path:
    """Return the default folder: below that of a JSON file, below the study's `best/` for its winner, else in the current folder."""
    from oppa.tuning.resolve_configuration import is_json

    if is_json(source):
        return source.parent / to
    return source / "best" / to if source.is_dir() and not setting else Path(name)


def _require_free(folder: Path, files: dict[str, str]) -> None:
    """Raise InputError if one of the files exists with different text."""
    from oppa.errors import InputError

    for name, text in files.items():
        path = folder / name
        if path.exists() and (not path.is_file() or path.read_text(errors="replace") != text):
            raise InputError(f"`{path}` exists, and differs", hint="name another folder with --out, or overwrite it with --force")


def _weights(source: Path, to: str, out: Path | None, *, force: bool, changed: bool) -> list[Path]:
    """Write the weights of a run or of a checkpoint, and return the files."""
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.errors import InputError
    from oppa.training.checkpoint.exporting import export_dcp, export_huggingface
    from oppa.training.checkpoint.manifest import MANIFEST
    from oppa.training.run.run_folder import CHECKPOINTS, RunSpec, checkpoints

    if changed:
        raise InputError(f"`--to {to}` writes weights, which no configuration changes", hint="leave out the configuration and `--set`")
    if not source.is_dir():
        hint = "name the folder of a run, or of one of its checkpoints"
        raise InputError(f"`{source}` is not a run, whose weights `--to {to}` writes", hint=hint)
    if (source / MANIFEST).is_file():
        checkpoint = source
    else:
        RunSpec.read(source)
        saved = checkpoints(source)
        if not saved:
            raise InputError(f"`{source}` has no checkpoint yet", hint="wait for one, or stop the run, which then saves one")
        checkpoint = saved[0]
    run = checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint.parent
    folder = out or run / "exports" / f"{to}-{checkpoint.name}"
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise InputError(f"`{folder}` exists, and is not empty", hint="name another folder with --out, or replace it with --force")
        for file in [file for pattern in WEIGHTS[to] for file in folder.glob(pattern)]:
            file.unlink()
    with style.err().status(escape(f"writing {folder}")):
        return (export_dcp if to == "dcp" else export_huggingface)(checkpoint, folder)
