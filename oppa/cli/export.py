"""`oppa export STUDY --to deepspeed`: a configuration in a framework's own words, as files that run as they are."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem

SOURCE = "A study's folder, whose winner is exported, or its best/configuration.json, or a job file."
SETTING = "Another configuration: an id, `dp=2,micro_batch=4`, the rest at its defaults, or a JSON file that holds one."
FORMAT = "torchrun, deepspeed, colossalai, megatron, megatron-bridge, torchtitan or accelerate."
OUT = "Where to write: FORMAT in STUDY/best or beside the JSON file, or for a job JOB-FORMAT here, unless given."


def export(
    source: Annotated[Path, typer.Argument(metavar="STUDY|JOB", help=SOURCE, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="[SETTING]", help=SETTING, show_default=False)] = "",
    to: Annotated[str, typer.Option(metavar="FORMAT", help=FORMAT)] = "torchrun",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the files as JSON, by name, and write none.")] = False,
) -> None:
    """Write a configuration as files of a framework; what the format cannot express is an error that names the parameter."""
    from oppa.cli import style
    from oppa.cli.summary import file_name
    from oppa.tuning.formats import export as exported
    from oppa.tuning.hand_over import write_files

    problem, configuration = _question(source, setting)
    files = exported(to, problem, configuration)
    if as_json:
        typer.echo(json.dumps(files, indent=1))
        return
    folder = out or _folder(source, setting, f"{file_name(problem.name)}-{to}", to)
    if not force:
        _require_free(folder, files)
    write_files(folder, files)
    style.err().print(f"{configuration.id} for {to}:", markup=False)
    for name in files:
        typer.echo(folder / name)


def _folder(source: Path, setting: str, name: str, to: str) -> Path:
    """Where to write unless told: with the winner that was asked for, else here under a name of its own."""
    if _is_json(source):
        return source.parent / to
    return source / "best" / to if source.is_dir() and not setting else Path(name)


def _question(source: Path, setting: str) -> "tuple[Problem, Configuration]":
    """The problem, and which of its configurations is meant."""
    from oppa.errors import InputError
    from oppa.problem.job import load_job

    if source.is_dir():
        return _of_study(source, setting)
    if _is_json(source):
        if setting:
            raise InputError(f"`{source}` says which configuration is meant, and so does `{setting}`", hint="leave out one of them")
        return _of_study(_study_around(source), str(source))
    problem = load_job(source)
    configuration = _meant(setting, problem) if setting else problem.baseline
    if configuration is None:
        hint = f"say which: `oppa export {source} dp=2,micro_batch=4`, or a study whose winner it is"
        raise InputError(f"the job `{source}` has many configurations, and no `[baseline]`", hint=hint)
    return problem, configuration


def _of_study(folder: Path, setting: str) -> "tuple[Problem, Configuration]":
    """A study's problem, and its winner unless another configuration is asked for."""
    from oppa.errors import InputError
    from oppa.problem.problem import Problem
    from oppa.study import Study
    from oppa.tuning.result import current

    with Study(folder) as study:
        problem = Problem.from_dict(study.meta["problem"])
        if setting:
            return problem, _meant(setting, problem)
        finding = current(study.trials(), problem.candidates(), problem.limits.repeats, problem.baseline)
    if finding is None:
        hint = f"`oppa tune` with it finds one, or say a setting: `{folder} dp=2`"
        raise InputError(f"the study `{folder}` has no winner yet", hint=hint)
    return problem, finding.best.configuration


def _is_json(source: Path) -> bool:
    return source.suffix == ".json" and not source.is_dir()


def _study_around(file: Path) -> Path:
    """The study that a file lies in; raises InputError where there is none."""
    from oppa.errors import InputError
    from oppa.study.database import FILE

    for folder in file.absolute().parents:
        if (folder / FILE).is_file():
            return folder
    raise InputError(f"`{file}` lies in no study, which would say its job", hint=f"name the job, too: `oppa export JOB {file}`")


def _meant(setting: str, problem: "Problem") -> "Configuration":
    """The configuration of a setting, or of a JSON file; raises InputError that names what it violates."""
    from oppa.problem.baseline import complete, loaded, require_legal
    from oppa.problem.setting import find

    if setting.endswith(".json"):
        return loaded(problem.space, Path(setting))
    candidates = problem.candidates()
    asked, matches = find(setting, candidates)
    if len(matches) == 1:
        return candidates.configuration(int(matches[0]))
    return require_legal(problem.space, complete(problem.space, asked))


def _require_free(folder: Path, files: dict[str, str]) -> None:
    """Raise InputError for a file that has another text."""
    from oppa.errors import InputError

    for name, text in files.items():
        path = folder / name
        if path.exists() and (not path.is_file() or path.read_text(errors="replace") != text):
            raise InputError(f"`{path}` exists, and differs", hint="name another folder with --out, or overwrite it with --force")
