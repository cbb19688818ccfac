"""Finds the software that a runner's trials run on, as the user's own PATH finds it.

oppa's own environment never stands in for a program that PATH does not find: the user's program would run on another torch.
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from oppa.errors import EnvironmentLackingError, StudyError
from oppa.problem.command import Command, names_in
from oppa.problem.problem import Problem
from oppa.problem.software import Software
from oppa.trials.runner import Runner, find_program

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "colossalai")
"""Programs that start ranks with the `python` that lies in the same folder, also where they are shims and no Python themselves."""
ANSWER_S = 60.0
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_ASK = """
import json, sys
from importlib import metadata
try:
    torch = metadata.version("torch")
except metadata.PackageNotFoundError:
    torch = ""
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"python": sys.executable, "prefix": sys.prefix, "python_version": version, "torch": torch}))
"""


def software_of(runner: Runner, command: Command | None) -> Software | None:
    """Return what a runner's trials run on; None where trials are simulated and nothing is started.

    Raises:
        EnvironmentLackingError: PATH does not find the program of the launch line, or its interpreter does not start.
    """
    if runner.in_process:
        return None
    if command is None and (not runner.command or runner.command[0] == "{python}"):
        return dataclasses.replace(_ask(runner.python, str(runner.python)), python=str(runner.python))
    return _started_by(command.argv if command else runner.command)


def require_same(folder: Path, problem: Problem, now: Software | None) -> None:
    """Refuse to measure on other software than the study has measured on; raises StudyError, which names the first difference.

    Args:
        problem: The study's own, as it was recorded.
    """
    if problem.software is None or now is None:
        return
    for name, then, here in problem.software.differences(now):
        hint = f"activate the environment that it ran on, {problem.software.interpreter}; or name another folder, for a new study"
        raise StudyError(f"the study in `{folder}` was measured with {name} {then}, and here it is {here}", hint=hint)


def _started_by(words: Sequence[str]) -> Software:
    """Look for the programs of a launch line: its first word, and behind a wrapper such as `numactl` the first that runs on Python."""
    if any(names_in(words[0])):
        return Software(path=os.environ.get("PATH", os.defpath))
    first = find_program(words[0])
    programs = {words[0]: str(first)}
    if python := _interpreter(first):
        return dataclasses.replace(_ask(python, words[0]), programs=programs)
    for word in words[1:]:
        found = None if any(names_in(word)) or word.startswith("-") else shutil.which(word)
        if found and (python := _interpreter(inner := Path(found).absolute())):
            return dataclasses.replace(_ask(python, word), programs={**programs, word: str(inner)})
    return Software(programs=programs, path=os.environ.get("PATH", os.defpath))


def _interpreter(program: Path) -> Path | None:
    """Return the interpreter that runs a program, by its name or its first lines; None where it is no Python program."""
    if _PYTHON.fullmatch(program.name):
        return program
    with program.open("rb") as file:
        head = file.read(1024).decode(errors="replace").splitlines()
    if named := _named_in(head):
        found = shutil.which(named)
        return Path(found or named).absolute()
    beside = program.with_name("python")
    return beside if program.name in LAUNCHERS and beside.exists() else None


def _named_in(head: Sequence[str]) -> str:
    """Return the Python that the first lines of a script name; pip writes a path that is long, or has spaces, in the second line."""
    if not head or not head[0].startswith("#!"):
        return ""
    lines = [head[0].removeprefix("#!")]
    if len(head) > 1 and head[1].startswith("'''exec' "):
        lines.append(head[1].removeprefix("'''exec' ").partition(' "$0"')[0])
    for line in lines:
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        for word in words:
            if _PYTHON.fullmatch(Path(word).name):
                return word
    return ""


def _ask(python: Path, word: str) -> Software:
    """Ask an interpreter for its environment and versions; it imports nothing but Python's own modules."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        said = subprocess.run(
            [str(python), "-c", _ASK],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=True,
        )
        return Software(**json.loads(said.stdout.strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError) as error:
        *_, reason = ["", *str(getattr(error, "stderr", "") or error).strip().splitlines()]
        message = f"`{word}` runs on the interpreter `{python}`, which does not start: {reason}"
        raise EnvironmentLackingError(message, hint="repair its environment, or name another program") from None
