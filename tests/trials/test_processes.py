"""A process is found by its tree and by its tags, and ended for good."""

import os
import signal
import subprocess
import sys
import time

import pytest

from oppa.trials import processes
from oppa.trials.guarded_process import GuardedProcess
from oppa.trials.processes import Process

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"


@pytest.fixture
def start():
    """Start a Python program that prints a line when it is ready."""
    started = []

    def run(program, **environment):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, **environment})
        started.append(child)
        child.stdout.readline()
        return next(each for each in processes.descendants(os.getpid()) if each.pid == child.pid)

    yield run
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def test_this_process_lives_and_a_later_one_of_its_number_is_another():
    this = processes.this_process()
    assert processes.is_living(this)
    assert not processes.is_living(Process(this.pid, this.started + 1))


def test_a_zombie_does_not_live(start):
    child = start("import time; print(flush=True); time.sleep(100)")
    os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes.is_living(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes.is_living(child)
    assert child not in processes.descendants(os.getpid())


def test_a_tag_is_seen_and_whatever_lies_below_it(start):
    parent = start(
        "import subprocess; child = subprocess.Popen(['sleep', '100'], env={}); print(flush=True); child.wait()", OPPA_STUDY="x1"
    )
    found = processes.tagged(lambda environment: environment.get("OPPA_STUDY") == "x1")
    below = processes.descendants(parent.pid)
    assert found == {parent} | below
    assert len(below) == 1
    processes.end(lambda: below & processes.descendants(os.getpid()), 0)


HIDDEN = """
import os, subprocess
from oppa.trials import processes
os.setgid(65534)
os.setuid(65534)
child = subprocess.Popen(["sleep", "100"])
print({each.pid for each in processes.descendants(os.getpid())} == {child.pid}, processes.tagged(lambda _: False))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a /proc and act as another user")
def test_processes_of_others_that_the_kernel_hides_are_passed_over():
    hiding = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", 'mount -t proc -o hidepid=1 proc /proc && { sleep 9 & "$@"; }', "sh"]
    if subprocess.run([*hiding, "true"], check=False).returncode:
        pytest.skip("NOT TESTED with a /proc that hides processes: it cannot be mounted here")
    assert subprocess.check_output([*hiding, sys.executable, "-c", HIDDEN], text=True) == "True set()\n"


def test_the_deaf_are_killed_after_the_grace(start):
    child = start(STUBBORN)
    assert processes.end(lambda: {child} & processes.descendants(os.getpid()), 0.2) == {child}
    assert not processes.is_living(child)


def test_the_stopped_hear_that_they_shall_end(start):
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True); time.sleep(100)"
    child = start(program)
    os.kill(child.pid, signal.SIGSTOP)
    processes.end(lambda: {child} & processes.descendants(os.getpid()), 20)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 7


def test_a_guarded_command_that_a_real_time_signal_killed_has_ended_by_its_number(tmp_path):
    guarded = GuardedProcess("it", ["sh", "-c", "kill -35 $$"], environment={}, grace_s=1, log=tmp_path / "log")
    try:
        while not guarded.ended():
            time.sleep(0.01)
        assert guarded.ended() == "it was killed by signal 35"
    finally:
        guarded.close()
