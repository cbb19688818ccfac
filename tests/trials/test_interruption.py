"""A session records the first request to stop, and obeys the second at once, but never in the middle of a module that is loaded."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import oppa
from oppa.trials.interruption import Interruption

MODULE = """
import os, signal
for _ in range({requests}):
    os.kill(os.getpid(), signal.SIGINT)
for number in range(300_000):  # Python handles signals between its instructions
    complete = number
"""
PROGRAM = """
import sys, time
from oppa import stop_request
from oppa.trials.interruption import Interruption

{follow}
asked = Interruption()
try:
    with asked.caught():
        import slow
        time.sleep({wait_s})
        print("went on", slow.complete, asked.asked)
except KeyboardInterrupt:
    print("stopped", sys.modules["slow"].complete)  # a module that was interrupted is not there
"""


@pytest.mark.parametrize(
    ("requests", "follow", "expected"),
    [
        (1, "stop_request.follow()", "went on 299999 True"),
        (2, "stop_request.follow()", "stopped 299999"),
        (2, "", "went on 299999 True"),
    ],
    ids=["recorded", "obeyed", "in a program of its own"],
)
def test_a_request_waits_for_the_module(requests, follow, expected, tmp_path) -> None:
    (tmp_path / "slow.py").write_text(MODULE.format(requests=requests))
    program = PROGRAM.format(follow=follow, wait_s=600 if expected.startswith("stopped") else 0.5)  # a stop ends the wait
    path = os.pathsep.join([str(tmp_path), str(Path(oppa.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_the_second_request_stops_at_once() -> None:
    asked = Interruption()
    asked(signal.SIGINT, sys._getframe())
    with pytest.raises(KeyboardInterrupt):
        asked(signal.SIGINT, sys._getframe())
