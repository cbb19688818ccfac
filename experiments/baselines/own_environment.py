"""Run a library that cannot be installed next to oppa: a script in the library's own environment answers JSON lines.

An environment variable names the Python of that environment. Each request holds all that its answer depends on:

    {"points": [[x, ...], ...], "seen": [[candidate, log throughput or null], ...], "free": [candidate, ...], "seed": n}

The answer is `{"candidate": n}`.
"""

import dataclasses
import functools
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Set
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from experiments.baselines.random_first import RandomFirst
from oppa.errors import EnvironmentLackingError
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem

SCRIPTS = Path(__file__).parent / "own_environments"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LibraryEnvironment:
    """Defines an environment: the variable that names its Python, what to install into it, and the script that it runs."""

    variable: str
    packages: tuple[str, ...]
    script: Path

    @property
    def python(self) -> str:
        """Return the environment's Python; raises EnvironmentLackingError if the variable names no program."""
        named = os.environ.get(self.variable, "")
        if not named or shutil.which(named) is None:
            what = f"is `{named}`, which is no program" if named else "is not set"
            raise EnvironmentLackingError(f"this designer needs an environment of its own, but `{self.variable}` {what}", hint=self.hint)
        return named

    @property
    def hint(self) -> str:
        """Return the commands that create the environment."""
        return f"`python3 -m venv ENV && ENV/bin/pip install {shlex.join(self.packages)}`, then set `{self.variable}=ENV/bin/python`"


class ScriptedDesigner(RandomFirst):
    """Implements the designers `vizier` and `syne-tune`."""

    stream = "script"

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, environment: LibraryEnvironment) -> None:
        super().__init__(problem, candidates, seed=seed)
        self._points, self._library = encode(candidates), LibraryProcess(environment)

    def _choose(self, rows: NDArray[np.int64], taken: Set[int], rng: np.random.Generator) -> int:
        """Return the script's suggestion."""
        request = {
            "points": self._points.tolist(),
            "seen": [[seen.candidate, seen.log_steps_per_s] for seen in self._seen],
            "free": rows.tolist(),
            "seed": int(rng.integers(2**31)),
        }
        return int(self._library.answer(request)["candidate"])


class LibraryProcess:
    """Holds a running script, which ends with this object, or with this process."""

    def __init__(self, environment: LibraryEnvironment) -> None:
        """Start the script, and wait until its library is imported; raises EnvironmentLackingError if that fails."""
        python = environment.python
        self._environment, self._errors = environment, tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the script runs
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, str(environment.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=clean,
        )
        weakref.finalize(self, _end, self._process, self._errors)
        self._read()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raises EnvironmentLackingError if the script has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> EnvironmentLackingError:
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        what = f"`{self._environment.script.name}` ended in the environment that `{self._environment.variable}` names"
        return EnvironmentLackingError(f"{what}: {''.join(last) or 'it wrote no error'}", hint=self._environment.hint)


def _end(process: subprocess.Popen[str], errors: IO[bytes]) -> None:
    process.kill()
    process.communicate()
    errors.close()


VIZIER = LibraryEnvironment(
    variable="OPPA_VIZIER_PYTHON",
    # equinox, which Vizier pins, needs a JAX that still has `jax.core.Primitive`
    packages=("google-vizier[jax]==0.1.24", "jax==0.4.35", "jaxlib==0.4.35", "flax==0.10.2"),
    script=SCRIPTS / "vizier_bandit.py",
)
SYNE_TUNE = LibraryEnvironment(
    variable="OPPA_SYNE_TUNE_PYTHON", packages=("syne-tune[extra]==0.16.0",), script=SCRIPTS / "syne_tune_quantiles.py"
)


vizier, syne_tune = (functools.partial(ScriptedDesigner, environment=environment) for environment in (VIZIER, SYNE_TUNE))
"""The designers `vizier` and `syne-tune`."""
