"""The law of `oppa bench faults` on hanging readers: it counts their own time, on a machine of any load."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.faults import law
from experiments.faults.case import Case

OWN_S = 0.4
RIVALS = 4


@pytest.fixture
def busy_core() -> Iterator[None]:
    """This process has one core, which it shares with others that always run."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    with contextlib.ExitStack() as rivals:
        for _ in range(RIVALS):
            command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
            rival = rivals.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            rivals.callback(rival.kill)
            assert rival.stdout and rival.stdout.readline()
        yield
    os.sched_setaffinity(0, before)


def computes(_case: Case, _folder: Path) -> None:
    end = time.thread_time() + OWN_S
    while time.thread_time() < end:
        pass


@pytest.mark.slow
@pytest.mark.skipif(not law.SCHEDULED.exists(), reason="this kernel does not count how long a process waits for a core")
def test_a_reader_that_waits_for_a_core_does_not_hang(busy_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "LIMIT_S", 2 * OWN_S)
    assert law.judge(Case(name="slow", files={}), computes).answer == "accepted"


@pytest.mark.parametrize("read", [lambda *_: time.sleep(600), lambda *_: [None for _ in iter(int, 1)]], ids=["waits", "computes"])
def test_a_reader_without_an_end_hangs(read: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "LIMIT_S", 0.2)
    assert law.judge(Case(name="endless", files={}), read).answer == "hang"  # type: ignore[arg-type]


def test_a_reader_that_ignores_the_first_end_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "LIMIT_S", 0.2)

    def read(*_: object) -> None:
        with contextlib.suppress(BaseException):
            time.sleep(600)
        time.sleep(2)

    assert law.judge(Case(name="stubborn", files={}), read).answer == "hang"


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """Alarms of the caller, which has a timer of its own."""
    found: list[int] = []
    handler, left_s = signal.signal(signal.SIGALRM, lambda number, _: found.append(number)), signal.getitimer(signal.ITIMER_REAL)[0]
    yield found
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left_s)


def test_a_caller_s_timer_goes_on_after_a_verdict(alarms: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 100)
    assert law.judge(Case(name="fast", files={}), lambda *_: time.sleep(0.1)).answer == "accepted"
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 99.95 and not alarms


def test_a_caller_s_timer_that_ends_during_a_verdict_rings_after_it(alarms: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    assert law.judge(Case(name="fast", files={}), lambda *_: time.sleep(0.1)).answer == "accepted"
    time.sleep(0.1)
    assert alarms == [signal.SIGALRM]
