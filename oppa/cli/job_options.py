"""Read the input of a command: a job file, and the user's own launch line after `--`."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.errors import InputError, StudyError

if TYPE_CHECKING:
    from oppa.problem.problem import Problem
    from oppa.study import Study
    from oppa.trials.runner import Runner

COMMAND = "Your own launch line, such as `torchrun train.py --micro-batch {micro_batch}`."
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help=COMMAND, show_default=False)]


def refuse_command(command: Sequence[str] | None, because: str) -> None:
    """Raise InputError if a launch line is given to a command that cannot use it."""
    if command:
        raise InputError(f"the command `{shlex.join(command)}` has no part here: {because}", hint="leave it out")


def with_software(problem: "Problem", runner: "Runner") -> "Problem":
    """Return the problem with the software that its trials run on.

    Raises:
        EnvironmentLackingError: PATH does not find the program, or its interpreter does not start.
        JobError: the launch line has no words for a value.
    """
    from oppa.trials.runner import require_program
    from oppa.trials.software import software_of

    if problem.command:
        require_program(problem.command, problem.space)
    return dataclasses.replace(problem, software=software_of(runner, problem.command))


def open_study(problem: "Problem", folder: Path, *, option: str = "--study") -> "Study":
    """Open the study in a folder, or make one; `option` is the command-line option that named the folder.

    Raises:
        StudyError: the folder holds the study of another problem, or one that was measured on other software.
    """
    from oppa.problem.problem import Problem
    from oppa.study import Study
    from oppa.trials.software import require_same

    try:
        study = Study.create(folder, problem.to_dict(), problem.fingerprint)
    except StudyError as error:
        hint = error.hint if option == "--study" else error.hint.replace("--study", option).replace(", or leave it out", "")
        raise type(error)(error.message, hint=hint) from None
    try:
        require_same(folder, Problem.from_dict(study.meta["problem"]), problem.software)
    except BaseException:
        study.close()
        raise
    return study
