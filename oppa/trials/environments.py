"""Make and find the Python environments that runners declare.

A runner with an `environment.toml` in its folder runs on an interpreter of its own. The reason is that frameworks pin packages which oppa
or another framework needs in other versions. The environment is made before any trial, and no trial changes it. Its name holds a hash of
the declaration, so a changed pin gives another environment. The declaration has this form:

    imports = ["torch", "deepspeed"]       modules that must be importable for the environment to count as made
    warm_up = "warm_up.py"                 program that runs once at the end, so that nothing is compiled inside a trial
    [[step]]                               one call of pip for each such table, in this order
    packages = ["deepspeed==0.19.8"]
    options = ["--no-deps"]
    environment = { DS_BUILD_OPS = "0" }

Environments are stored below OPPA_ENVIRONMENTS, else in the user's cache folder. TORCH_INDEX, if set, is the package index for torch.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

import oppa
from oppa import catalog
from oppa.atomic_write import draft_beside
from oppa.errors import EnvironmentLackingError, InputError
from oppa.private_files import open_private
from oppa.problem.declaration import DeclaredTable, parse, read
from oppa.redaction import redacted
from oppa.regular_file import exists, read_json
from oppa.trials import logs
from oppa.trials.trial_folder import write_json

DECLARATION = "environment.toml"
RECORD = "oppa.json"
LOG = "oppa.log"

INHERITED = frozenset(["OPPA_DATA", "OPPA_ENVIRONMENTS", "OPPA_HOST", "OPPA_NETLAB"])
"""Variables of oppa that describe a host, and may be of use to a trial."""

Words = Annotated[list[str], Field(min_length=1)]
State = Literal["ready", "missing", "incomplete"]


class StepTable(DeclaredTable):
    """Validates a `[[step]]` table: packages that one call of pip installs."""

    packages: Words
    options: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)


class DeclarationTable(DeclaredTable):
    """Validates the contents of an `environment.toml`."""

    imports: Words
    warm_up: str | None = None
    step: Annotated[list[StepTable], Field(min_length=1)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Describes the environment that a runner declares, made or not."""

    runner: Path
    """Folder of the runner that declares it."""
    path: Path

    @property
    def name(self) -> str:
        """Return the runner's name."""
        return self.runner.name

    @property
    def python(self) -> Path:
        """Return the path of its interpreter."""
        return self.path / "bin" / "python"

    @property
    def state(self) -> State:
        """Return `ready`, `missing`, or `incomplete` if its making did not finish."""
        if self._recorded is not None and exists(self.python):
            return "ready"
        return "incomplete" if exists(self.path) else "missing"

    @property
    def packages(self) -> dict[str, str]:
        """Return the installed versions by package name; empty unless the environment is ready."""
        return (self._recorded or {}) if self.state == "ready" else {}

    @property
    def _recorded(self) -> dict[str, str] | None:
        """Return the versions that its record states; None if it has no record, or a damaged one."""
        try:
            return {str(name): str(version) for name, version in read_json(self.path / RECORD)["packages"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def earlier(self) -> list[Path]:
        """Return the folders of environments that were made for other declarations of this runner."""
        return sorted(path for path in self.path.parent.glob(f"{self.name}-*/") if path != self.path)

    def require(self) -> Path:
        """Return its interpreter; raises EnvironmentLackingError, with the command that makes the environment, unless it is ready."""
        if self.state != "ready":
            was = "is incomplete" if self.state == "incomplete" else "does not exist"
            hint = f"create it: `oppa env create {_spelled(self.runner)}`"
            raise EnvironmentLackingError(f"the environment of the runner `{self.name}` {was}", hint=hint)
        return self.python


def environment(runner: Path) -> Environment | None:
    """Return the environment that a runner's folder declares; None if its program runs in oppa's environment."""
    declaration = runner / DECLARATION
    if not declaration.is_file():
        return None
    return Environment(runner=runner, path=home() / f"{runner.name}-{_fingerprint(declaration)}")


def known() -> list[Environment]:
    """Return the environments that the catalog's runners declare."""
    found = (environment(catalog.find("runners", name)) for name in catalog.names("runners"))
    return [each for each in found if each is not None]


def home() -> Path:
    """Return the folder of all environments: OPPA_ENVIRONMENTS, else `oppa/environments` in the user's cache.

    Raises:
        EnvironmentLackingError: neither is known, because the user has no home.
    """
    if named := os.environ.get("OPPA_ENVIRONMENTS"):
        return Path(named).absolute()
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        message = "the user has no home, in which environments of runners lie"
        raise EnvironmentLackingError(message, hint="set HOME or OPPA_ENVIRONMENTS to a folder of yours") from None
    return (cache / "oppa" / "environments").absolute()


def create(wanted: Environment, tell: Callable[[str], None]) -> None:
    """Make an environment unless it is ready; the remains of an unfinished attempt are removed first.

    Args:
        tell: Called with a description of each step before it begins.

    Raises:
        InputError: the declaration is wrong.
        EnvironmentLackingError: a step failed. The log is in the environment's folder; the next call starts again.
    """
    declared = _declaration(wanted.runner)
    with _alone(wanted, tell):
        if wanted.state == "ready":
            return
        shutil.rmtree(wanted.path, ignore_errors=True)
        tell(f"creating an interpreter in {wanted.path}")
        _run(wanted, [sys.executable, "-m", "venv", str(wanted.path)], "creating an interpreter")
        for step in declared.step:
            tell(f"installing {', '.join(step.packages)}")
            _run(wanted, _pip(wanted, step), f"installing {step.packages[0]}", step.environment)
        _warm_up(wanted, declared, tell)
        record = {"runner": str(wanted.runner), "python": sys.version.split()[0], "packages": _installed(wanted)}
        write_json(wanted.path / RECORD, record)


def remove(wanted: Environment) -> list[Path]:
    """Remove an environment and those made for other declarations of its runner; return the removed folders."""
    there = [path for path in (wanted.path, *wanted.earlier) if path.exists()]
    for path in there:
        shutil.rmtree(path)
    return there


def variables(python: Path, packages: Path) -> dict[str, str]:
    """Return the variables that start a program in an environment: its commands on PATH, and oppa in the folder `packages`.

    oppa is not installed there. A link to the running package suffices, because a program imports only oppa's modules for torch.
    """
    link, ours = packages / "oppa", Path(oppa.__file__).resolve().parent
    packages.mkdir(exist_ok=True)
    if link.resolve() != ours:
        with draft_beside(link, durable=False) as draft:
            draft.symlink_to(ours, target_is_directory=True)
    commands = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": commands, "VIRTUAL_ENV": str(python.parent.parent), "PYTHONPATH": str(packages)}


def inherited() -> dict[str, str]:
    """Return this process's environment for a trial, without the variables of oppa's options and of its tuners."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPPA_") or name in INHERITED}


def _declaration(runner: Path) -> DeclarationTable:
    path = runner / DECLARATION
    declared = read(DeclarationTable, path, error=InputError)
    if declared.warm_up and not (runner / declared.warm_up).is_file():
        raise InputError(f'`{path}`: `warm_up = "{declared.warm_up}"` does not exist', hint=f"write `{runner / declared.warm_up}`")
    return declared


def _fingerprint(declaration: Path) -> str:
    """Return a hash of the declaration, without its comments, and of the Python that makes the environment."""
    declared = parse(declaration.read_text(), source=str(declaration), error=InputError)
    return hashlib.sha256(json.dumps([declared, sys.version, sys.base_prefix], sort_keys=True).encode()).hexdigest()[:8]


def _pip(wanted: Environment, step: StepTable) -> list[str]:
    index = os.environ.get("TORCH_INDEX")
    from_index = ["--index-url", index] if index and any(package.startswith("torch==") for package in step.packages) else []
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    return [str(wanted.python), "-m", "pip", "install", *quiet, *from_index, *step.options, *step.packages]


def _warm_up(wanted: Environment, declared: DeclarationTable, tell: Callable[[str], None]) -> None:
    tell(f"importing {', '.join(declared.imports)}")
    started = {**variables(wanted.python, wanted.path / "packages"), "OMP_NUM_THREADS": "1"}
    _run(wanted, [str(wanted.python), "-P", "-c", f"import {', '.join(declared.imports)}"], "importing its packages", started)
    if declared.warm_up:
        started["PYTHONPATH"] = os.pathsep.join([str(catalog.client()), started["PYTHONPATH"]])
        _run(wanted, [str(wanted.python), "-P", str(wanted.runner / declared.warm_up)], "running its warm-up", started)


def _installed(wanted: Environment) -> dict[str, str]:
    command = [str(wanted.python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    listed: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {package["name"]: package["version"] for package in listed}


def _run(wanted: Environment, command: list[str], doing: str, more: dict[str, str] | None = None) -> None:
    """Run a command to its end with its output in the log; raises EnvironmentLackingError, with the last line of it, if it fails."""
    wanted.path.mkdir(parents=True, exist_ok=True)
    log = wanted.path / LOG
    with log.open("ab") as output:
        output.write(f"$ {shlex.join(redacted(command))}\n".encode())
        output.flush()
        ended = subprocess.run(command, env={**os.environ, **(more or {})}, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if ended.returncode:
        *_, words = ["it printed nothing", *logs.last_words(log).splitlines()]
        message = f"{doing} for the runner `{wanted.name}` failed with exit code {ended.returncode}: {words}"
        raise EnvironmentLackingError(message, hint=f"read `{log}`, then run `oppa env create {_spelled(wanted.runner)}` again")


@contextlib.contextmanager
def _alone(wanted: Environment, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an environment; wait while another process makes the environment."""
    home().mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_private(home() / f"{wanted.path.name}.lock", os.O_RDWR | os.O_CREAT), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that creates it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _spelled(runner: Path) -> str:
    """Return the name by which users give the runner: its name in the catalog, else its folder."""
    return runner.name if runner.parent == catalog.root() / "runners" else str(runner)
