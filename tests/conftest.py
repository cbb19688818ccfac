"""Prepare processes of tests: long files first, a lock on devices of their own, temporary files of each worker apart, and an end of hangs.

Laws are tried on 25 random examples, and under `--hypothesis-profile whole`, which `make faults` uses, on 200.
"""

import collections
import faulthandler
import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

hypothesis.settings.register_profile("sample", max_examples=25, deadline=None)  # a loaded machine is no error
hypothesis.settings.register_profile("whole", max_examples=200, deadline=None)
hypothesis.settings.load_profile("sample")

FOLDER = pytest.StashKey[str]()
STUCK_S = 120.0
"""Seconds after its timeout at which a phase of a test counts as stuck in cleanup or in C code, where no exception ends it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.browser import browsing

    with browsing() as browser:
        yield browser


def pytest_configure(config: pytest.Config) -> None:
    from oppa.cli import COLLECTED

    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # gloo's threads poll for locks of ranks that they preempt
    gc.set_threshold(*COLLECTED)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker or not getattr(config.option, "numprocesses", None):  # no process that only starts workers
        os.environ["XDG_RUNTIME_DIR"] = config.stash[FOLDER] = tempfile.mkdtemp(prefix=f"oppa-{worker or 'tests'}-")
    if worker:
        os.environ["TMPDIR"] = tempfile.tempdir = config.stash[FOLDER]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background, whose processes would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have most tests of environments, then of faults, then slow ones, so that the workers end together.

    Those that mostly wait for Slurm alternate with others, so that one worker computes while another one waits.
    """
    long = collections.Counter((item.path, mark.name) for item in items for mark in item.iter_markers())
    items.sort(key=lambda item: [-long[item.path, mark] for mark in ("environment", "faults", "slow")])
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    apart = [[tests for tests in files if _waits(tests) is waits] for waits in (True, False)]
    items[:] = [item for pair in itertools.zip_longest(*apart, fillvalue=()) for tests in pair for item in tests]


def _waits(tests: list[pytest.Item]) -> bool:
    return any("slurm" in getattr(item, "fixturenames", ()) for item in tests)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _end_if_stuck(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _end_if_stuck(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _end_if_stuck(item)


def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def _end_if_stuck(item: pytest.Item) -> None:
    """End the process with the stacks of all threads if this phase of the test outlasts its timeout. So a hang is a failure with a name."""
    from _pytest.faulthandler import fault_handler_stderr_fd_key  # sys.stderr is captured

    mark = item.get_closest_marker("timeout")
    timeout_s = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(timeout_s + STUCK_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and all modules, which every collection would look through
