"""Every way in which a trial on two nodes of a real Slurm can end; each leaves both nodes fit for the next."""

import contextlib
import dataclasses
import os
import re
import signal
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.launchers.hosts import PATIENCE_S, SILENCE_S, HostsLauncher
from oppa.launchers.slurm import SlurmHosts, nodes
from oppa.problem.training import Limits
from oppa.trials import processes
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.launchers.slurm_cluster import until
from tests.sampling import nightly
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec

pytestmark = pytest.mark.slow

SHARE = ("--cpus-per-task=2", "--mem=1000")
"""Of each node, so that there is room for a second allocation."""
WAITING = 9
"""Processes between trials: a shim, srun and its helper; on each node an agent, a shim, and the parent of its ranks."""
LONG = "steps 5000 0.02"


class Trials:
    """Trials in an allocation, one after the other."""

    def __init__(self, slurm, allocation, study: str) -> None:
        self.slurm, self.job, self.study = slurm, allocation.job, study
        place = SlurmHosts(self.job, spec("", ranks=2, steps=1).cluster, nodes(self.job))
        self.launcher = HostsLauncher(load_runner(SCRIPT_RUNNER), place, study=study, grace_s=1)

    def run(self, folder: Path, script: str, *, ranks: int = 2, steps: int = 4, **watching):
        """A trial with half of its ranks on each node."""
        wanted = dataclasses.replace(spec(script, ranks=ranks, steps=steps), study=self.study)
        return run_trial(self.launcher, folder, wanted, limits=Limits(trial_time_s=60, grace_s=1), **watching)

    def living(self, **variables: str) -> set[int]:
        """Of this study, on all nodes; those with such variables."""
        wanted = {processes.STUDY_TAG: self.study, **variables}.items()
        return {process.pid for process in processes.tagged(lambda environment: wanted <= environment.items())}

    def wait_until_nothing_is_left(self) -> None:
        """On any node: Slurm, too, takes a moment to end what we have given up."""
        until(lambda: not self.living(), lambda: str(self.living()), timeout_s=5)

    def agent(self, node: int) -> int:
        """The process id of a node's agent: the first of the step there."""
        (step,) = self.steps()
        name, (_, number) = self.slurm.nodes[node], step.split(".")
        there = self.living(SLURMD_NODENAME=name, SLURM_STEP_ID=number)
        (agent,) = (pid for pid in there if parent_of(pid) not in there)
        return agent

    def steps(self) -> list[str]:
        """What Slurm runs in the job, besides its script."""
        listed = self.slurm.run("squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i").stdout.split()
        return [step for step in listed if not step.endswith(".batch")]


def spec(script, *, ranks, steps):
    alone = script_spec(script, ranks=ranks, steps=steps)
    return dataclasses.replace(alone, cluster=dataclasses.replace(alone.cluster, hosts=2, devices_per_host=ranks // 2))


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def amid(do):
    """Do something once, while the trial runs."""
    return lambda measurement: do() if measurement.step == 2 else None


@contextlib.contextmanager
def trials_in(slurm, study):
    """An allocation, and this process as if started inside of it."""
    with slurm.allocation(*SHARE) as allocation, pytest.MonkeyPatch.context() as patch:
        for name, value in allocation.environment.items():
            if name.startswith("SLURM"):
                patch.setenv(name, value)
        trials = Trials(slurm, allocation, study)
        with trials.launcher:
            yield trials
        trials.wait_until_nothing_is_left()


@pytest.fixture(scope="module")
def trials(slurm):
    """For all trials that leave their allocation as it was."""
    with trials_in(slurm, STUDY) as trials:
        yield trials


@pytest.fixture
def doomed(slurm):
    """In an allocation that does not outlive the test."""
    with trials_in(slurm, f"{STUDY}-doomed") as trials:
        yield trials


@pytest.fixture
def act(trials, tmp_path):
    """Run a script as a trial. Nothing is left of it, or no process at all, and the next trial completes."""
    yield lambda script, **how: trials.run(tmp_path, script, **how)
    until(lambda: len(trials.living()) in (0, WAITING), lambda: str(trials.living()), timeout_s=5)
    assert trials.run(tmp_path / "next", "steps 4 0.01").outcome == "completed"
    assert len(trials.living()) == WAITING


@pytest.mark.parametrize("per_node", [1, 2])
def test_ranks_fill_the_nodes_in_their_order(act, slurm, tmp_path, per_node):
    result = act("variable SLURMD_NODENAME\nsteps 4 0.01", ranks=2 * per_node)
    assert (result.outcome, result.steps) == ("completed", 4)
    told = re.findall(r"^rank (\d): (\S+)$", (tmp_path / "stdout.log").read_text(), re.MULTILINE)
    assert sorted(told) == [(str(rank), slurm.nodes[rank // per_node]) for rank in range(2 * per_node)]


def test_a_judge_stops_it_at_a_step(act):
    result = act(LONG, steps=5000, stop_rule=lambda times: len(times) >= 3)
    assert (result.outcome, result.cause) == ("terminated_early", "")
    assert 3 <= result.steps < 5000


def test_running_out_of_memory_on_the_second_node_is_told(act):
    result = act("steps 1 0.01\nlimit 64 @ 1\nallocate 256 @ 1\nsleep 100")
    assert (result.outcome, result.rank) == ("out_of_memory", 1)


def test_a_killed_rank_of_the_second_node_is_named(act):
    result = act("steps 2 0.01\nsignal SIGKILL @ 3\nsleep 100", ranks=4)
    assert (result.outcome, result.cause, result.rank) == ("failed", "rank 3 was killed by SIGKILL", 3)


def test_a_hang_is_found_and_ended(act):
    result = act("daemon\nforget\nsteps 3 0.01\nsignal SIGSTOP\nsleep 100", hang_s=0.5)
    assert (result.outcome, result.steps) == ("timed_out", 3)
    assert result.cause.startswith("hang: no step for ")


def test_the_traceback_of_a_rank_of_the_second_node_is_kept(act):
    result = act("steps 2 0.01\nraise 'no good' @ 1\nsleep 100")
    assert (result.outcome, result.cause, result.rank) == ("failed", "RuntimeError: no good", 1)
    assert "do_raise" in result.traceback


def test_the_logs_of_both_nodes_are_the_trials(act, slurm, tmp_path):
    act("print 3\nraise 'no good'")
    head = f"--- host 1, {slurm.nodes[1]}\n"
    assert (tmp_path / "stdout.log").read_text() == f"xxx\nthe end\n\n{head}xxx\nthe end\n"
    first, _, second = (tmp_path / "stderr.log").read_text().partition(head)
    assert first.count("do_raise") == second.count("do_raise") == 1
    assert not (tmp_path / "host1").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(signal.SIGSTOP)], ids=["killed", "stopped"])
def test_a_host_whose_agent_is_silent_interrupts_the_trial(act, trials, number):
    result = act(LONG, steps=5000, on_step=amid(lambda: os.kill(trials.agent(1), number)))
    assert (result.outcome, result.cause) == ("interrupted", f"host {trials.slurm.nodes[1]} no longer responds")
    assert result.seconds < SILENCE_S + PATIENCE_S
    trials.wait_until_nothing_is_left()


def test_a_cancelled_step_fails_the_trial_with_what_slurm_says(act, trials):
    result = act(LONG, steps=5000, on_step=amid(lambda: trials.slurm.run("scancel", *trials.steps())))
    assert (result.outcome, result.cause) == ("failed", "launch failure: the command that starts the agents exited with code 137")
    assert "CANCELLED" in result.traceback
    trials.wait_until_nothing_is_left()


def test_a_node_that_dies_interrupts_the_trial(doomed, tmp_path):
    def die():
        agent = doomed.agent(1)
        for pid in (parent_of(agent), agent):
            os.kill(pid, signal.SIGKILL)

    result = doomed.run(tmp_path, LONG, steps=5000, on_step=amid(die))
    assert (result.outcome, result.cause) == ("interrupted", f"host {doomed.slurm.nodes[1]} no longer responds")
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
