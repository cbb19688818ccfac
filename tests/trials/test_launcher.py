"""A launcher that cannot start a trial fails that trial, and not the study."""

import contextlib
import errno
import os

from oppa.problem.training import Limits
from oppa.trials.launcher import Launcher
from oppa.trials.trial import run_trial


class Exhausted:
    """Launches on a host that has no process to give."""

    hosts = ()

    def devices(self, spec, on_tick):
        return contextlib.nullcontext()

    def start(self, folder, spec):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def close(self):
        pass


def test_a_host_that_refuses_fails_the_trial_alone(make_spec, tmp_path):
    launcher: Launcher = Exhausted()
    result = run_trial(launcher, tmp_path, make_spec(), limits=Limits())
    assert (result.outcome, result.steps) == ("failed", 0)
    assert result.cause == "launch failure: [Errno 11] Resource temporarily unavailable"
    assert "in start" in result.traceback
