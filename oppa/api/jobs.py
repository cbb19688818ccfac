"""Load the jobs of sessions, and state the facts that explain their trials later."""

from collections.abc import Callable, Sequence
from pathlib import Path

import oppa
from oppa.errors import InputError
from oppa.problem import job as job_file
from oppa.problem.problem import Problem

Resume = Callable[[Path], Sequence[str]]
"""Returns the words after `oppa` that continue a session in a folder; tuners on other hosts are started with them."""


def load_job(path: str | Path, *, settings: Sequence[str] = (), command: Sequence[str] = ()) -> Problem:
    """Return the problem that a job file describes.

    Args:
        path: The job file.
        settings: Changes of its keys before it is validated, as `--set` takes them: `["limits.trials=20"]`.
        command: The user's own launch line; it replaces that of the file's `[command]`.

    Raises:
        JobError: something in the file is wrong.
        InputError: `command` is a text, or the runner, the search space or one of their files is missing or wrong.
    """
    _require_words(command, "oppa.load_job(path, command=shlex.split(line))")
    return job_file.load_job(Path(path), settings=settings, argv=command)


def load_line(command: Sequence[str], *, settings: Sequence[str] = (), study: str | Path | None = None) -> "oppa.LineJob":
    """Return the job that a launch line amounts to, without a job file.

    Args:
        command: The words of the line, such as `["torchrun", "--nproc-per-node", "8", "train.py"]`.
        settings: Changes of the job's keys, as `--set` takes them: `["model.layers=32"]`.
        study: Folder of a study; if it is one of the same line, its job is continued.

    Raises:
        InputError: the line cannot be understood, contradicts itself, or leaves nothing to vary.
    """
    from oppa.tuning.launch_line.line_job import load_line as load

    _require_words(command, "oppa.load_line(shlex.split(line))")
    return load(command, settings=settings, study=Path(study) if study else None)


def _require_words(command: Sequence[str], call: str) -> None:
    """Raise InputError, whose hint is a call, if a launch line is a text, which is a sequence of letters."""
    if isinstance(command, str):
        raise InputError(f"a launch line is a list of words, not the text `{command}`", hint=f"split it: `{call}`")


def problem_of(job: object) -> Problem:
    """Return the problem of a job file, or the problem itself; raises InputError for anything else."""
    if isinstance(job, Problem):
        return job
    if not isinstance(job, str | Path):
        hint = "give the path of a job file, or the result of `oppa.load_job(path)` or `oppa.load_line(words).problem`"
        raise InputError(f"an object of type `{type(job).__name__}` is no job", hint=hint)
    return load_job(job)


def session_facts(problem: Problem, name: str, resume: Resume | None, *, designer: str, seed: int) -> dict[str, str]:
    """Return the facts that explain a session's trials later: command, versions, hardware, designer and seed."""
    from oppa.report.record import provenance

    of_interface = {"command": f"`python oppa.{name}`"} if resume is None else {}
    return {**provenance(problem.software), **of_interface, "designer": designer, "seed": str(seed)}


def session_folder(
    problem: Problem, given: str | Path | None, resume: Resume | None, *, among: str, launcher: str | None = None
) -> tuple[Path, Sequence[str]]:
    """Return the folder of a session, made below `among` if none is given, and the words after `oppa` that start further tuners.

    Raises:
        InputError: the job has parallel trials, and `resume` is None, so that nothing starts them; no folder is made.
    """
    from oppa.tuning.session import new_folder, require_one_tuner

    if resume is None:
        require_one_tuner(problem, launcher)
    folder = Path(given) if given is not None else new_folder(problem.name, among)
    return folder, resume(folder) if resume is not None else ()
