"""The command line as a user has it: arguments, two streams and an exit code; in the tests' process, or in one of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import oppa
from oppa.cli.views import style
from tests.schema_check import require_valid

MAIN = Path(oppa.__file__).with_name("__main__.py")


class Oppa:
    """Runs `oppa` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def argv(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "oppa", *map(str, arguments)]

    def __call__(self, *arguments: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run it in this process to its end, as a process would; the exit code must be `code`."""
        words = self.argv(*arguments)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with _as_a_process(words[3:], self.folder, self.environment()), _written_to(1, out), _written_to(2, err):
                ended = _main()
            done = subprocess.CompletedProcess(words, ended, _text(out), _text(err))
        return _expected(done, code)

    def process(self, *arguments: object, code: int = 0, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run it in a process of its own, where that is the law."""
        words, environment = self.argv(*arguments), self.environment()
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
        return _expected(done, code)

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        """Start a process, to send signals to."""
        words, environment = self.argv(*arguments), self.environment()
        return subprocess.Popen(words, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def environment() -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


READ_ONLY = """\
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && ! touch "$1/written" 2>/dev/null && cd "$PWD" && shift && exec "$@"
"""


FULL = """\
cp -aT "$1" "$1.held" && mount -t tmpfs -o size=2m none "$1" && cp -aT "$1.held" "$1" || exit 1
! head -c 3m /dev/zero >"$1/fill" 2>/dev/null && shift && exec "$@"
"""


def while_read_only(folder: Path) -> list[str]:
    """Return the words in front of a command for which a folder cannot be written; skip the test where that is impossible."""
    return _where_mounted(READ_ONLY, folder)


def while_full(folder: Path) -> list[str]:
    """Return the words in front of a command for which a folder's files are on a full disk; skip the test where that is impossible."""
    return _where_mounted(FULL, folder)


def _where_mounted(script: str, folder: Path) -> list[str]:
    alone = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no mount namespaces for its users")
    return [*alone, "sh", "-c", script, "sh", str(folder)]


def commands_below(command: Any) -> dict[str, Any]:
    """The commands of a group by name; none below a command."""
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in getattr(command, "list_commands", lambda _: ())(context)}


def _expected(done: "subprocess.CompletedProcess[str]", code: int) -> "subprocess.CompletedProcess[str]":
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    require_valid(done.args[3:], done.stdout)
    return done


def _main() -> int:
    from oppa.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _text(file: io.BufferedRandom) -> str:
    file.seek(0)
    return file.read().decode()


@contextlib.contextmanager
def _as_a_process(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Arguments, folder and environment are a process's own; what it changes in this one is put back."""
    before = dict(os.environ), sys.argv, list(sys.path), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _set_environment(environment)
    sys.argv, sys.path[:] = [str(MAIN), *words], [str(folder), *sys.path]
    os.chdir(folder)
    try:
        yield
    finally:
        _set_environment(before[0])
        sys.argv, sys.path[:] = before[1], before[2]
        os.chdir(before[3])
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _set_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


@contextlib.contextmanager
def _written_to(number: int, file: io.BufferedRandom) -> Iterator[None]:
    """Redirect what this process and its children write to stdout (1) or stderr (2) to a file."""
    name = {1: "stdout", 2: "stderr"}[number]
    before, kept = getattr(sys, name), os.dup(number)
    before.flush()
    os.dup2(file.fileno(), number)
    setattr(sys, name, io.TextIOWrapper(os.fdopen(os.dup(number), "wb", 0), encoding="utf-8", write_through=True))
    _forget_consoles()
    try:
        yield
    finally:
        getattr(sys, name).close()
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)
        _forget_consoles()


def _forget_consoles() -> None:
    style.out.cache_clear()
    style.err.cache_clear()
