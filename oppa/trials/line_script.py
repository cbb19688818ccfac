"""Check that the script of a launch line exists, before trials start it in vain."""

import contextlib
import difflib
import logging
from collections.abc import Sequence
from pathlib import Path

from oppa.errors import InputError
from oppa.problem.command import LaunchCommand
from oppa.problem.containers import containers
from oppa.problem.launch_line.line import LaunchLine, read_line
from oppa.problem.templates import names_in, without_escapes
from oppa.regular_file import exists

_log = logging.getLogger(__name__)

_CHANGE_FOLDER = ("cwd", "directory", "wdir", "wd", "pwd")
"""Options of wrappers and steps that start the program in another folder; the line's own folder has that of `env -C`."""


def require_script(command: LaunchCommand, *, on_this_host: bool) -> None:
    """Check that the Python script of a launch line exists, and warn if it may exist only on other hosts or in a container.

    Modules, programs that PATH finds, and scripts whose folder is not known are not checked.

    Args:
        command: The launch line.
        on_this_host: Trials start on this host.

    Raises:
        InputError: the script does not exist.
    """
    script = _script(command.argv)
    if script is None or exists(script):
        return
    if not on_this_host or any(containers(command.argv)):
        _log.warning("the launch line starts `%s`, which this host does not have: trials need it where they run", script)
        return
    alike = difflib.get_close_matches(script.name, [file.name for file in sorted(script.parent.glob("*.py"))], n=1)
    correct = f"did you mean `{script.parent / alike[0]}`? Otherwise" if alike else "correct its path, or"
    hint = f"{correct} run oppa in the folder in which the launch line works"
    raise InputError(f"the launch line starts `{script}`, which does not exist", hint=hint)


def _script(words: Sequence[str]) -> Path | None:
    """Return the path of the Python script that a launch line starts; None if it starts another program, or if its path is not known."""
    line = None
    with contextlib.suppress(InputError):  # a job file's line may be one that oppa does not understand
        line = read_line(words, environment={})
    if line is None or line.is_module or line.scripts or not _starts_python(line) or any(names_in(line.program.text)):
        return None
    if any(stage.has(*_CHANGE_FOLDER) for stage in line.stages):
        return None
    return line.path(without_escapes(line.program.text))


def _starts_python(line: LaunchLine) -> bool:
    """Return whether the interpreter or a launcher of Python's ranks starts a script."""
    launcher = line.stage("launcher")
    if launcher is not None and Path(launcher.words[0].text).name == "tune" and not line.program.text.endswith(".py"):
        return False  # a recipe in the package of torchtune
    return bool(line.python) or (launcher is not None and not launcher.has("no-python", "run-path"))
