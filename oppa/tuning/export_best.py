"""Export the winner to the study's `best/` folder: a script that starts the job, and the files of other frameworks."""

import dataclasses
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from oppa.atomic_write import write_atomically
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.database import disk_errors
from oppa.trials.runner import load_runner
from oppa.trials.trial_folder import TrialSpec, write_json
from oppa.tuning.formats import FORMATS, exports, torchrun
from oppa.tuning.formats.launch import SCRIPT

RUNNERS_OWN = ("torchrun", "kubernetes")
"""Formats that start the job's own runner: the files of the first lie in `best/` itself, those of the second only on request."""

_README = """\
# {name}: {id}

{own}{exported}{refused}"""
_EXPORTED = "\nThe configuration for other frameworks; the `run.sh` of each folder describes its use:\n\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedBest:
    """Describes the contents of `best/`."""

    folder: Path
    script: Path | None
    """Script that starts the job as its trials were started; None if they were simulated."""
    exported: tuple[str, ...]
    refused: Mapping[str, str]
    """Formats that cannot express the winner, each with the reason."""


def write_best(study: Study, problem: Problem, best: Trial) -> ExportedBest:
    """Write `best/`: configuration.json, trial.json, run.sh, README.md, and a folder for each format that can express the winner.

    A job without a model is of a program that is none of these frameworks. Tuners that end together write one after the other.
    Raises StudyError if the folder cannot be written.
    """
    with study.transaction(), disk_errors(study.folder / "best"):
        return _written(study, problem, best)


def _written(study: Study, problem: Problem, best: Trial) -> ExportedBest:
    folder, configuration = study.folder / "best", best.configuration
    TrialSpec.of(problem.restored, configuration, study=study.uuid, trial=best.id, steps=torchrun.STEPS).write(folder)
    write_json(folder / "configuration.json", configuration.to_dict())
    found = exports(problem, configuration) if problem.stated_model else {}
    made = {name: files for name, files in found.items() if name not in RUNNERS_OWN}
    for name, files in made.items():
        _forget(folder / name, FORMATS[name].FILES)
        if not isinstance(files, InputError):
            write_files(folder / name, files)
    refused = {name: f"{files.message}; {files.hint}" for name, files in made.items() if isinstance(files, InputError)}
    exported = ExportedBest(
        folder=folder,
        script=_write_script(folder, problem, configuration),
        exported=tuple(name for name in made if name not in refused),
        refused=refused,
    )
    write_files(folder, {"README.md": _readme(exported, problem, configuration)})
    return exported


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts to files of a folder, each whole or not at all, and make scripts executable. Raises OSError if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(folder / name, text.encode(errors="surrogateescape"))  # a path may have any bytes
        if name == SCRIPT:
            (folder / name).chmod(0o755)


def _write_script(folder: Path, problem: Problem, configuration: Configuration) -> Path | None:
    if load_runner(problem.runner).in_process:
        return None
    write_files(folder, {SCRIPT: torchrun.export(problem, configuration)[SCRIPT]})
    return folder / SCRIPT


def _forget(folder: Path, names: Collection[str]) -> None:
    """Remove the files that were written for an earlier winner, and the folder if nothing else is in it."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _start(problem: Problem, script: Path) -> str:
    several = f"srun --nodes={problem.cluster.hosts} --ntasks-per-node=1 " if torchrun.joins_hosts(problem) else ""
    return f"{several}sh {shlex.quote(str(script))}"


def _as_trials(problem: Problem) -> str:
    """Return how the script's job compares with the trials."""
    is_same = problem.restored is problem
    return " as its trials were" if is_same else " with your own paths, trackers and checkpoints, which its trials did not use"


def _readme(exported: ExportedBest, problem: Problem, configuration: Configuration) -> str:
    script = exported.script
    return _README.format(
        name=problem.name,
        id=configuration.id,
        own=f"`{_start(problem, script)}` starts the job{_as_trials(problem)}.\n" if script else "Its trials were simulated.\n",
        exported=_EXPORTED + "".join(f"- `{name}/`\n" for name in exported.exported) if exported.exported else "",
        refused="\nFormats of `oppa export` that cannot express it:\n\n" + "".join(f"- {why}\n" for why in exported.refused.values())
        if exported.refused
        else "",
    )
