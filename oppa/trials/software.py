"""Find the software that a runner's trials run on, as the user's own PATH finds it.

oppa's own environment never replaces a program that PATH does not find: the user's program would run on another torch.

A shim, such as pyenv's `shims/torchrun`, chooses a version each time it starts. The program that it chooses is found and recorded instead.
"""

import dataclasses
import filecmp
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from oppa.errors import EnvironmentLackingError, StudyError
from oppa.problem.command import LaunchCommand
from oppa.problem.problem import Problem
from oppa.problem.software import Software
from oppa.problem.templates import names_in
from oppa.trials import gpu_stack
from oppa.trials.line_files import digests
from oppa.trials.runner import Runner, find_program

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "colossalai")
"""Programs that start ranks with the `python` of their own folder, even if they are shims and not Python programs."""
ANSWER_S = 60.0
_MANAGED = re.compile("_*(PYENV|ASDF|MISE|RTX)_.*|PATH|PWD|OLDPWD|SHLVL|_|LC_CTYPE")
"""Variables that version managers, shells and Python itself set; a wrapper that sets others is more than a shim."""
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_ASK = """
import json, os, runpy, sys
from importlib import metadata, util
try:
    torch = metadata.version("torch")
except metadata.PackageNotFoundError:
    torch = ""
try:
    cuda = str(runpy.run_path(os.path.join(util.find_spec("torch").submodule_search_locations[0], "version.py"))["cuda"] or "")
except Exception:
    cuda = ""
version = "%d.%d.%d" % sys.version_info[:3]
software = {"python": sys.executable, "prefix": sys.prefix, "python_version": version, "torch": torch, "cuda": cuda}
print(json.dumps({"software": software, "environment": dict(os.environ)}))
"""


def software_of(runner: Runner, command: LaunchCommand | None) -> Software | None:
    """Return the software that a runner's trials run on; None if trials are simulated and nothing is started.

    Raises:
        EnvironmentLackingError: PATH does not find the program of the launch line, or its interpreter does not start.
    """
    if runner.in_process:
        return None
    if command is None and (not runner.command or runner.command[0] == "{python}"):
        return _with_stack(dataclasses.replace(_ask(runner.python, str(runner.python)), python=str(runner.python)), ())
    words = command.argv if command else runner.command
    found = _with_stack(_started_by(words), words)
    return dataclasses.replace(found, folder=str(Path.cwd()), files=digests(command)) if command else found


def _with_stack(software: Software, words: Sequence[str]) -> Software:
    """Return the software with the driver and the image, and with NCCL if there are a driver and a torch for CUDA, which loads slowly."""
    driver = gpu_stack.driver()
    nccl = gpu_stack.nccl(Path(software.python)) if driver and software.cuda else ""
    return dataclasses.replace(software, driver=driver, nccl=nccl, image=gpu_stack.image(words))


def require_same(folder: Path, problem: Problem, now: Software | None) -> None:
    """Check that the software is that of the study's earlier trials; raises StudyError, which names the first difference.

    Args:
        problem: The study's own problem, as it was recorded.
    """
    if problem.software is None or now is None:
        return
    for name, then, here in problem.software.differences(now):
        hint = (
            f"activate the environment that it ran on, {problem.software.interpreter}; or name another folder to begin a new study\n"
            f"      `oppa verify {folder}` measures its winner in this environment, and names what changed"
        )
        raise StudyError(f"the study in `{folder}` was measured with {name} {then}, but this environment has {here}", hint=hint)


def require_folder(problem: Problem) -> None:
    """Check that trials start the files that the study's launch line names by relative paths.

    Args:
        problem: The study's own problem, as it was recorded.

    Raises:
        StudyError: the folder of the study's trials has such a file, and this folder has none or another.
    """
    folder = Path(problem.software.folder) if problem.software and problem.software.folder else None
    if folder is None or problem.command is None or folder == Path.cwd():
        return
    relative = (word for word in problem.command.argv if not any(names_in(word)) and not Path(word).is_absolute())
    for word in (word for word in relative if (folder / word).is_file()):
        if not Path(word).is_file() or not filecmp.cmp(word, folder / word, shallow=False):
            message = f"the study's trials start `{word}` in `{folder}`, and this folder has {'another' if Path(word).exists() else 'none'}"
            raise StudyError(message, hint=f"run the command there: `cd {folder}`")


def _started_by(words: Sequence[str]) -> Software:
    """Return the software that a launch line starts.

    Its programs are the first word and, after a wrapper such as `numactl`, the first word that runs on Python.
    """
    if any(names_in(words[0])):
        return Software(path=_path())
    found = find_program(words[0])
    first = _chosen_by_shim(found)
    programs = {words[0]: str(first)}
    if python := _interpreter(first):
        return _recorded(python, words[0], programs, found)
    for word in words[1:]:
        named = None if any(names_in(word)) or word.startswith("-") else shutil.which(word)
        if named and (python := _interpreter(inner := _chosen_by_shim(Path(named).absolute()))):
            return _recorded(python, word, {**programs, word: str(inner)}, Path(named).absolute())
    return Software(programs=programs, path=_path())


def _recorded(python: Path, word: str, programs: Mapping[str, str], found: Path) -> Software:
    """Query a program's interpreter; keep PATH if it decides what runs, as for a shim or `#!/usr/bin/env python`."""
    software = _ask(python, word)
    program = Path(programs[word])
    left_to_path = program != found or not Path(_named_in(_head(program)) or "/").is_absolute()
    return dataclasses.replace(software, programs=programs, path=_path() if left_to_path else "")


def _path() -> str:
    """Return PATH; if its `python` is a shim, the folder of the interpreter that the shim starts goes first."""
    path = os.environ.get("PATH", os.defpath)
    found = [Path(named).absolute() for name in ("python", "python3") if (named := shutil.which(name))]
    folders = [chosen.parent for each in found if (chosen := _chosen_by_shim(each)) != each]
    return os.pathsep.join([*map(str, folders[:1]), path])


def _chosen_by_shim(program: Path) -> Path:
    """Return the program that a shim starts: the one of its name in the interpreter's folder. Return any other program unchanged."""
    is_python = bool(_PYTHON.fullmatch(program.name))
    interpreter = program if is_python else program.with_name("python")
    if not is_python and (not interpreter.exists() or _named_in(_head(program))):
        return program
    try:
        software, set_by_it = _answer(interpreter)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return program
    python = Path(software.python)
    chosen = python if is_python else python.with_name(program.name)
    return chosen if not set_by_it and chosen.is_file() else program


def _interpreter(program: Path) -> Path | None:
    """Return the interpreter that runs a program, found by its name or its first lines; None if it is no Python program."""
    if _PYTHON.fullmatch(program.name):
        return program
    if named := _named_in(_head(program)):
        found = shutil.which(named)
        return Path(found or named).absolute()
    sibling = program.with_name("python")
    return sibling if program.name in LAUNCHERS and sibling.exists() else None


def _head(program: Path) -> list[str]:
    """Return the first lines of a program."""
    with program.open("rb") as file:
        return file.read(1024).decode(errors="replace").splitlines()


def _named_in(head: Sequence[str]) -> str:
    """Return the Python that the first lines of a script name; empty if they name none.

    pip writes a path that is long, or has spaces, in the second line.
    """
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
    """Query an interpreter for its environment and versions; raises EnvironmentLackingError if it does not start."""
    try:
        return _answer(python)[0]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        *_, reason = ["", *str(getattr(error, "stderr", "") or error).strip().splitlines()]
        message = f"`{word}` runs on the interpreter `{python}`, which does not start: {reason}"
        raise EnvironmentLackingError(message, hint="repair its environment, or use another program") from None


def _answer(python: Path) -> tuple[Software, set[str]]:
    """Return the software that an interpreter reports, and the variables that a wrapper around it has set.

    The interpreter imports only modules of Python's own, and reads torch's file of versions.

    Raises:
        OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError: the interpreter does not start, or does not answer.
    """
    given = {**os.environ, "PYTHONSAFEPATH": "1"}
    completed = subprocess.run(
        [str(python), "-c", _ASK], env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S, check=True
    )
    answer = json.loads(completed.stdout.strip().splitlines()[-1])
    changed = {name for name, value in answer["environment"].items() if given.get(name) != value and not _MANAGED.fullmatch(name)}
    return Software(**answer["software"]), changed
