"""Every way to die: after grace + 2 s no process is left, and the next trial works.

`make faults` repeats each five times.
"""

import os
import signal
import time

import pytest

from oppa.trials import processes
from oppa.trials.orphans import end_orphans, left_behind
from tests.sampling import nightly

GRACE_S, SILENCE_S = 1.0, 1.0
ENDLESS = "daemon\nforget\nsteps 100000 0.02"
"""Steps for ever, with a grandchild in a session of its own that is deaf to SIGTERM, and one whose environment is empty."""
GOOD = "steps 5 0.01"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.parametrize("repeat", range(int(os.environ.get("OPPA_FAULT_REPEATS", "1")))),
]


def assert_gone(survivors):
    """The law: grace + 2 s after the fault nothing lives that should not."""
    deadline = time.monotonic() + GRACE_S + 2
    while (left := survivors()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_tuner_killed(start_tuner, repeat):
    tuner = start_tuner(ENDLESS)
    tuner.meet()
    tuner.kill(tuner.process)
    assert_gone(tuner.survivors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tuner_asked_to_end(start_tuner, repeat, number):
    tuner = start_tuner(ENDLESS)
    tuner.meet()
    tuner.kill(tuner.process, number=number)
    assert_gone(tuner.survivors)
    assert tuner.wait() == 130


# Without `forget`: who has neither a tag nor a living shim above it is out of reach.
SHIM, FORK_SERVER = (0, "shim", "daemon\nsteps 100000 0.02"), (1, "fork server", ENDLESS)


@pytest.mark.parametrize(
    ("kind", "place", "name", "trial"),
    [("warm", *SHIM), ("cold", *FORK_SERVER), *nightly(("cold", *SHIM), ("warm", *FORK_SERVER))],
)
def test_shim_or_fork_server_killed(start_tuner, repeat, kind, place, name, trial):
    tuner = start_tuner(trial, GOOD, kind=kind)
    tuner.kill(tuner.meet()[place])
    assert_gone(lambda: {each for each in tuner.family - {tuner.process} if processes.is_living(each)})
    assert tuner.wait() == 0
    assert [each["outcome"] for each in tuner.results()] == ["failed", "completed"]
    assert tuner.results()[0]["cause"] == f"launch failure: the {name} was killed by SIGKILL"
    assert_gone(tuner.survivors)


@pytest.mark.parametrize("kind", ["warm", *nightly("cold")])
def test_rank_killed(start_tuner, repeat, kind):
    tuner = start_tuner(ENDLESS, GOOD, kind=kind)
    _, _, ranks = tuner.meet()
    tuner.kill(ranks[1])
    assert tuner.wait() == 0
    assert tuner.results() == [
        {"outcome": "failed", "cause": "rank 1 was killed by SIGKILL"},
        {"outcome": "completed", "cause": ""},
    ]
    assert not tuner.survivors()


def test_rank_hung(start_tuner, repeat):
    tuner = start_tuner(ENDLESS, GOOD, silence_s=SILENCE_S)
    _, _, ranks = tuner.meet()
    tuner.kill(ranks[0], number=signal.SIGSTOP)
    assert tuner.wait() == 0
    first, second = tuner.results()
    assert first["outcome"] == "timed_out"
    assert first["cause"].startswith("hang: ")
    assert second["outcome"] == "completed"
    assert not tuner.survivors()


def test_rank_out_of_memory(start_tuner, repeat):
    tuner = start_tuner("daemon\nsteps 2 0.02\nlimit 64 @ 1\nallocate 256 @ 1\nsteps 100000 0.02", GOOD)
    tuner.meet()
    assert tuner.wait() == 0
    assert [each["outcome"] for each in tuner.results()] == ["out_of_memory", "completed"]
    assert not tuner.survivors()


def test_launcher_stopped(start_tuner, repeat):
    tuner = start_tuner("daemon\nsteps 50 0.02", GOOD, silence_s=SILENCE_S)
    _, parent, _ = tuner.meet()
    tuner.kill(parent, number=signal.SIGSTOP)
    tuner.wait()
    first, _ = tuner.results()
    assert first["outcome"] == "timed_out"
    assert not tuner.survivors()


@pytest.mark.parametrize("with_parent", [True, False])
def test_tuner_and_shim_killed_together_are_cleared_at_the_next_start(start_tuner, repeat, with_parent):
    tuner = start_tuner("daemon\nsteps 100000 0.02")
    shim, parent, _ = tuner.meet()
    tuner.kill(tuner.process, shim, *[parent] * with_parent)
    tuner.wait()
    assert left_behind(tuner.study)
    assert end_orphans(tuner.study)
    assert not tuner.survivors()


def test_a_sweep_leaves_living_tuners_alone(start_tuner, repeat):
    dead = start_tuner("daemon\nsteps 100000 0.02")
    shim, _, _ = dead.meet()
    dead.kill(dead.process, shim)
    dead.wait()
    living = start_tuner(ENDLESS, study=dead.study)
    living.meet()
    assert not living.family & set(end_orphans(dead.study))
    assert all(map(processes.is_living, living.family))
    assert not {each for each in dead.family if processes.is_living(each)}
