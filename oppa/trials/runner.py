"""Load a runner: a folder with a `runner.toml` and usually a program that trains.

A runner that is `in_process` has no program: oppa simulates or replays its trials.
"""

import dataclasses
import importlib.util
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.problem.command import LaunchCommand
from oppa.problem.configuration import PARAMETERS, is_name
from oppa.problem.declaration import DeclaredTable, read
from oppa.problem.parameter_values import meant_by
from oppa.problem.software import minor_release
from oppa.problem.space import SearchSpace
from oppa.problem.templates import names_in
from oppa.problem.training import OfSomeRunners
from oppa.trials import environments

MANIFEST = "runner.toml"


def _parameter(name: str) -> str:
    if meant_by(name) or not is_name(name):
        facts = {"message": f"unknown parameter `{name}`", "hint": nearest(name, PARAMETERS)}
        raise PydanticCustomError("quantity", "{message}", facts)
    return name


class RunnerManifest(DeclaredTable):
    """Validates a `runner.toml`."""

    name: str | None = None
    description: str = ""
    program: str | None = None
    run: str | None = None
    command: list[str] = Field(default_factory=list)
    warm: bool = False
    in_process: bool = False
    search_space: str = ""
    parameters: list[Annotated[str, AfterValidator(_parameter)]] = Field(default_factory=list)
    unsupported: list[OfSomeRunners] = Field(default_factory=list)
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    grace_s: Annotated[float, Field(ge=0)] | None = None
    requires: list[str] = Field(default_factory=list)
    torch: list[Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]] = Field(default_factory=list)

    def record(self, folder: Path) -> "Runner":
        """Return the runner that a folder with this manifest holds."""
        lists = {key: tuple(getattr(self, key)) for key in ("command", "parameters", "unsupported", "requires", "torch")}
        programs = {key: folder / name if (name := getattr(self, key)) else None for key in ("program", "run")}
        return Runner(**{**self.model_dump(), "name": self.name or folder.name, **lists, **programs, "folder": folder})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Describes a program that trains, and how it is started."""

    folder: Path
    name: str
    description: str = ""
    python: Path = Path(sys.executable)
    """The interpreter of its programs: oppa's own, or that of the runner's environment."""
    program: Path | None = None
    """A Python file. Without a `command` it is started once per rank, with RANK, WORLD_SIZE, ... in the environment."""
    run: Path | None = None
    """The Python file that is started instead of `program` to train a run. None: the runner runs trials only."""
    command: tuple[str, ...] = ()
    """A command that is started once and starts the ranks itself, with `{python}`, `{program}`, `{nproc}` and `{folder}` filled in."""
    warm: bool = False
    """True if the program defines `run(folder, rank, world)` and is safe to fork once it is imported."""
    in_process: bool = False
    """True if nothing is started, because oppa simulates or replays the trials."""
    search_space: str = ""
    parameters: tuple[str, ...] = ()
    """Parameters that the program honours."""
    unsupported: tuple[OfSomeRunners, ...] = ()
    """Keys of `[training]` that the program ignores, so that jobs must not state them."""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    grace_s: float | None = None
    """Seconds between asking its processes to end and killing them. None: the study's."""
    requires: tuple[str, ...] = ()
    """Modules that this Python must be able to import."""
    torch: tuple[str, ...] = ()
    """Versions of torch that its programs support, such as 2.13; empty: any."""

    @property
    def isolated(self) -> bool:
        """Return True if its programs run in an environment of their own, into which oppa is only linked."""
        return self.python != Path(sys.executable)

    @property
    def trains_runs(self) -> bool:
        """Return True if `for_runs` made this runner."""
        return self.run is not None and self.program == self.run

    def for_runs(self) -> Self:
        """Return the runner that trains runs; raises InputError if it has no `run` program."""
        if self.run is None:
            raise InputError(f"the runner `{self.name}` runs trials only, and cannot train a run", hint='use `[runner] name = "torch"`')
        return dataclasses.replace(self, program=self.run)

    def argv(self, *, nproc: int, folder: Path) -> list[str]:
        """Return the command line of one rank, or of `command`, which starts all ranks; the runner must not be `in_process`."""
        assert not self.in_process
        if not self.command:
            return [str(self.python), "-P", str(self.program)]
        words = {"python": self.python, "program": self.program, "nproc": nproc, "folder": folder}
        return [word.format(**words) for word in self.command]


def load_runner(folder: Path) -> Runner:
    """Read and check `folder/runner.toml`.

    Raises:
        InputError: a key is unknown, a value is of the wrong kind, or a program does not exist.
        EnvironmentLackingError: a module or a command is not installed, torch is another version, or the environment is not made.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"`{folder}` is not a runner: it has no `{MANIFEST}`", hint="write one, or use a runner of the catalog")
    runner = read(RunnerManifest, path, error=InputError).record(folder.resolve())
    _check_start(path, runner)
    if own := environments.environment(runner.folder):
        runner = dataclasses.replace(runner, python=own.require())
    _check_installed(runner)
    return runner


def find_program(word: str) -> Path:
    """Return the absolute path of the program that PATH finds; raises EnvironmentLackingError if it finds none."""
    if found := shutil.which(word):
        return Path(found).absolute()
    if own := shutil.which(word, path=str(Path(sys.executable).parent)):
        message = f"the command starts `{word}`, which is not on PATH; oppa's own environment has one, but it is not used"
        hint = f"activate your environment, or give the absolute path of its `{word}`; to use oppa's own, write `{own}`"
        raise EnvironmentLackingError(message, hint=hint)
    hint = "install it, activate the environment that has it, or give its absolute path"
    raise EnvironmentLackingError(f"the command starts `{word}`, which is not installed", hint=hint)


def require_program(command: LaunchCommand, space: SearchSpace) -> None:
    """Check that trials can start a launch line, and that it has an entry for every value in the search.

    Raises:
        EnvironmentLackingError: PATH does not find the program.
        JobError: a value has no entry.
    """
    if not any(names_in(command.argv[0])):
        find_program(command.argv[0])
    if command.worded:
        from oppa.problem.candidates import enumerate_candidates  # agents on hosts read runners, and must start without numpy

        command.require_words_for(enumerate_candidates(space))


def _check_start(path: Path, runner: Runner) -> None:
    """Raise InputError unless the manifest states what to start and how, or that nothing is started (`in_process`)."""
    if runner.in_process:
        _check_in_process(path, runner)
        return
    if runner.program is None and not runner.command:
        raise InputError(f"`{path}` has neither `program` nor `command`", hint='add `program = "train.py"`')
    for key, program in (("program", runner.program), ("run", runner.run)):
        if program is not None and not program.is_file():
            raise InputError(f'`{path}`: `{key} = "{program.name}"` does not exist', hint=f"write `{program}`")
    if runner.warm and (runner.command or runner.program is None):
        raise InputError(f"`{path}`: `warm = true` needs a `program` without a `command`", hint="remove one of them")
    if runner.program is None and any("{program}" in word for word in runner.command):
        raise InputError(f"`{path}`: `{{program}}` needs a `program`", hint='add `program = "train.py"`')
    try:
        runner.argv(nproc=1, folder=runner.folder)
    except (KeyError, ValueError, IndexError) as error:
        hint = "use {python}, {program}, {nproc} or {folder}; write {{ and }} for braces"
        raise InputError(f"`{path}`: `command` has an unknown placeholder: {error}", hint=hint) from None


def _check_in_process(path: Path, runner: Runner) -> None:
    given = {"program": runner.program, "command": runner.command, "warm": runner.warm}
    for key, value in given.items():
        if value:
            raise InputError(f"`{path}`: `in_process = true` starts nothing, so `{key}` has no effect", hint="remove one of them")


def _check_installed(runner: Runner) -> None:
    lacking = [module for module in runner.requires if importlib.util.find_spec(module) is None]
    if lacking and not runner.isolated:
        hint = f"install it in oppa's environment: `{sys.executable} -m pip install {' '.join(lacking)}`"
        raise EnvironmentLackingError(f"the runner `{runner.name}` needs the module `{lacking[0]}`, which is not installed", hint=hint)
    if runner.in_process:
        return
    if runner.torch and not runner.isolated:
        _check_torch(runner)
    command = runner.argv(nproc=1, folder=runner.folder)[0]
    if shutil.which(command) is None:
        hint = "install it, or put its folder on PATH"
        raise EnvironmentLackingError(f"the runner `{runner.name}` starts `{command}`, which is not installed", hint=hint)


def _check_torch(runner: Runner) -> None:
    """Raise EnvironmentLackingError if oppa's torch is not a version that the runner's programs support."""
    version = metadata.version("torch")
    if minor_release(version) in runner.torch:
        return
    message = f"the runner `{runner.name}` was tested with torch {', '.join(runner.torch)}, but torch {version} is installed"
    hint = f"install it in oppa's environment: {catalog.install_hint('train')}; or tune your own program, which has its own torch"
    raise EnvironmentLackingError(message, hint=hint)
