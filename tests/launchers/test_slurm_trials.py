"""A trial on two nodes of a real Slurm obeys the laws of all launchers, and those that only Slurm has."""

import contextlib
import os
import re
import signal

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.launchers import hosts
from oppa.launchers.hosts import PATIENCE_S, SILENCE_S, HostsLauncher
from oppa.launchers.slurm import SlurmHosts, nodes
from oppa.trials.launcher import LOST
from oppa.trials.runner import load_runner
from tests.launchers.slurm_cluster import until
from tests.launchers.trial_laws import LONG, TrialLaws, Trials, amid, parent_of, spec
from tests.trials.conftest import SCRIPT_RUNNER, STUDY

pytestmark = pytest.mark.slow

SHARE = ("--cpus-per-task=2", "--mem=1000")
"""Share of each node that a job takes, so that there is room for a second allocation."""
WAITING = 9
"""Processes between trials: a shim, srun and its helper; on each node an agent, a shim, and the parent of its ranks."""


class SlurmTrials(Trials):
    """Trials in an allocation, one after the other."""

    host_variable = "SLURMD_NODENAME"

    def __init__(self, slurm, allocation, study: str) -> None:
        self.slurm, self.job = slurm, allocation.job
        place = SlurmHosts(self.job, spec("", steps=1).cluster, nodes(self.job))
        super().__init__(HostsLauncher(load_runner(SCRIPT_RUNNER), place, study=study, grace_s=1), place, study)

    @property
    def hosts(self):
        return self.slurm.nodes

    def on(self, host: int):
        """Return the variables of our step: the job's own script runs on the host, too."""
        (step,) = self.steps()
        return {**super().on(host), "SLURM_STEP_ID": step.split(".")[1]}

    def wait_until_nothing_is_left(self) -> None:
        """Wait until no node runs a process of ours: Slurm takes a moment to end what we have given up."""
        until(lambda: not self.living(), lambda: str(self.living()), timeout_s=5)

    def steps(self) -> list[str]:
        """Return the steps that Slurm runs in the job, without its script."""
        listed = self.slurm.run("squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i").stdout.split()
        return [step for step in listed if not step.endswith(".batch")]


@contextlib.contextmanager
def trials_in(slurm, study):
    """An allocation, and this process as if started inside of it."""
    with slurm.allocation(*SHARE) as allocation, pytest.MonkeyPatch.context() as patch:
        for name, value in allocation.environment.items():
            if name.startswith("SLURM"):
                patch.setenv(name, value)
        trials = SlurmTrials(slurm, allocation, study)
        with trials.launcher:
            yield trials
        trials.wait_until_nothing_is_left()


@pytest.fixture(scope="module")
def trials(slurm):
    """Hold an allocation for all trials that leave it as it was."""
    with trials_in(slurm, STUDY) as trials:
        yield trials


@pytest.fixture
def doomed(slurm):
    """Hold an allocation that does not outlive the test."""
    with trials_in(slurm, f"{STUDY}-doomed") as trials:
        yield trials


@pytest.fixture
def act(trials, tmp_path):
    """Run a script as a trial. Nothing is left of it, or no process at all, and the next trial completes."""
    yield lambda script, **how: trials.run(tmp_path, script, **how)
    until(lambda: len(trials.living()) in (0, WAITING), lambda: str(trials.living()), timeout_s=5)
    assert trials.run(tmp_path / "next", "steps 4 0.01").outcome == "completed"
    assert len(trials.living()) == WAITING


class TestOnSlurm(TrialLaws):
    """Checks the laws of trials on Slurm."""


def test_a_cancelled_step_fails_the_trial_with_what_slurm_says(act, trials):
    result = act(LONG, steps=5000, on_step=amid(lambda: trials.slurm.run("scancel", *trials.steps())))
    assert (result.outcome, result.cause) == ("failed", "launch failure: the command that starts the agents exited with code 137")
    assert "CANCELLED" in result.traceback
    trials.wait_until_nothing_is_left()


def test_a_step_that_gets_sigterm_before_a_preemption_interrupts_the_trial(act, trials):
    """Slurm sends this at the start of a grace period, in which the job still runs."""
    result = act(LONG, steps=5000, on_step=amid(lambda: trials.slurm.run("scancel", "--signal=TERM", *trials.steps())))
    assert result.outcome == "interrupted" and result.cause.endswith(" was signalled to end its trials")
    trials.wait_until_nothing_is_left()


def test_a_warning_before_the_time_limit_ends_no_trial(act, trials):
    result = act("steps 50 0.01", steps=50, on_step=amid(lambda: trials.slurm.run("scancel", "--signal=USR1", *trials.steps())))
    assert result.outcome == "completed"


def test_a_node_that_dies_interrupts_the_trial(doomed, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "SILENCE_S", 5.0)
    monkeypatch.setattr(hosts, "PATIENCE_S", 1.0)

    def die():
        agent = doomed.agent(1)
        for pid in (parent_of(agent), agent):
            os.kill(pid, signal.SIGKILL)

    result = doomed.run(tmp_path, LONG, steps=5000, on_step=amid(die))
    assert (result.outcome, result.cause) == ("interrupted", f"{LOST} {doomed.slurm.nodes[1]}: it no longer responds")
    assert result.seconds < SILENCE_S + PATIENCE_S
    doomed.wait_until_nothing_is_left()
    assert doomed.run(tmp_path / "next", "steps 4 0.01").outcome == "completed"  # though Slurm takes the step for running


def test_an_allocation_that_is_cancelled_interrupts_the_trial_and_has_no_next(doomed, tmp_path):
    result = doomed.run(tmp_path, LONG, steps=5000, on_step=amid(lambda: doomed.slurm.run("scancel", doomed.job)))
    assert result.outcome == "interrupted"
    assert re.fullmatch(rf"Slurm's job {doomed.job} is (COMPLETING|CANCELLED)( .*)?", result.cause)
    doomed.wait_until_nothing_is_left()
    with pytest.raises(EnvironmentLackingError, match=f"Slurm's job {doomed.job} has ended: CANCELLED"):
        doomed.run(tmp_path / "next", "steps 4 0.01")
