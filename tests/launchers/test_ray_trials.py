"""Every way in which a trial on two nodes of a real Ray cluster can end; each leaves both nodes fit for the next."""

import dataclasses
import os
import re
import signal
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers.hosts import PATIENCE_S, SILENCE_S, HostsLauncher
from oppa.launchers.provider import HostRequest, WaitingTuner
from oppa.launchers.ray.provider import RayProvider, bundle_of
from oppa.problem.training import Limits
from oppa.trials import processes
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.launchers.slurm_cluster import until
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec

pytestmark = [pytest.mark.slow, pytest.mark.ray]
LONG = "steps 5000 0.02"


def spec(script, *, ranks=2, steps=4):
    alone = script_spec(script, ranks=ranks, steps=steps)
    return dataclasses.replace(alone, cluster=dataclasses.replace(alone.cluster, hosts=2, devices_per_host=ranks // 2))


class Trials:
    """Trials on held nodes, one after the other."""

    def __init__(self, launcher, pool, study) -> None:
        self.launcher, self.pool, self.study = launcher, pool, study

    def run(self, folder: Path, script: str, *, ranks: int = 2, steps: int = 4, **watching):
        """A trial with half of its ranks on each node."""
        wanted = dataclasses.replace(spec(script, ranks=ranks, steps=steps), study=self.study)
        return run_trial(self.launcher, folder, wanted, limits=Limits(trial_time_s=60, grace_s=1), **watching)

    def living(self, **variables: str) -> set[int]:
        """Of this study; those with such variables."""
        wanted = {processes.STUDY_TAG: self.study, **variables}.items()
        return {process.pid for process in processes.tagged(lambda environment: wanted <= environment.items())}

    def agent(self, host: int) -> int:
        """The process id of a host's agent: the first with its number."""
        there = self.living(OPPA_HOST=str(host))
        (agent,) = (pid for pid in there if parent_of(pid) not in there)
        return agent


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def amid(do):
    """Do something once, while the trial runs."""
    return lambda measurement: do() if measurement.step == 2 else None


@pytest.fixture(scope="module")
def trials(ray_cluster, tmp_path_factory):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address}, parallel=1)
    tuner = WaitingTuner(folder=tmp_path_factory.mktemp("study"), name="job", grace_s=1, on_tick=lambda: None)
    with RayProvider().open(request, tuner) as backend:
        with HostsLauncher(load_runner(SCRIPT_RUNNER), backend.place, study=STUDY, grace_s=1) as launcher:
            yield (trials := Trials(launcher, backend.place, STUDY))
        until(lambda: not trials.living(), lambda: str(trials.living()), timeout_s=10)


@pytest.fixture
def act(trials, tmp_path):
    """Run a script as a trial, and then one that completes."""
    yield lambda script, **how: trials.run(tmp_path, script, **how)
    assert trials.run(tmp_path / "next", "steps 4 0.01").outcome == "completed"


@pytest.mark.parametrize("per_node", [1, 2])
def test_ranks_fill_the_nodes_in_their_order(act, tmp_path, per_node):
    result = act("variable OPPA_HOST\nsteps 4 0.01", ranks=2 * per_node)
    assert (result.outcome, result.steps) == ("completed", 4)
    told = re.findall(r"^rank (\d): (\S+)$", (tmp_path / "stdout.log").read_text(), re.MULTILINE)
    assert sorted(told) == [(str(rank), str(rank // per_node)) for rank in range(2 * per_node)]


def test_each_host_is_another_node(trials):
    assert len(set(trials.pool.names)) == 2
    assert set(trials.pool.names) < {"n0", "n1", "n2"}


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


def test_the_logs_of_both_nodes_are_the_trials(act, trials, tmp_path):
    act("print 3\nraise 'no good'")
    head = f"--- host 1, {trials.pool.names[1]}\n"
    assert (tmp_path / "stdout.log").read_text() == f"xxx\nthe end\n\n{head}xxx\nthe end\n"
    first, _, second = (tmp_path / "stderr.log").read_text().partition(head)
    assert first.count("do_raise") == second.count("do_raise") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_host_whose_agent_is_silent_interrupts_or_fails_the_trial(act, trials, number):
    result = act(LONG, steps=5000, on_step=amid(lambda: os.kill(trials.agent(1), number)))
    assert result.outcome == "interrupted"
    assert result.seconds < SILENCE_S + PATIENCE_S


def test_a_killed_step_fails_the_trial_and_leaves_nothing(act, trials):
    def kill():
        (step,) = (pid for pid in trials.living() if b"ray import step" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[3])
        os.kill(step, signal.SIGKILL)

    result = act(LONG, steps=5000, on_step=amid(kill))
    assert result.outcome == "failed"
    assert "the command that starts the agents was killed by SIGKILL" in result.cause


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpus_per_host": 3}, "needs 2 nodes with 3 CPUs each; the Ray cluster has 0"),
        ({"accelerator_type": "H100"}, "needs 2 nodes with 1 CPU each; the Ray cluster has 0"),
    ],
)
def test_what_the_cluster_does_not_have_is_an_error_at_once(ray_cluster, options, words):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address, **options})
    with pytest.raises(EnvironmentLackingError, match=words):
        RayProvider().require(request)


def test_more_parallel_trials_than_nodes_are_an_error(ray_cluster):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address}, parallel=2)
    with pytest.raises(EnvironmentLackingError, match="needs 4 nodes with 1 CPU each; the Ray cluster has 3"):
        RayProvider().require(request)


def test_an_address_without_a_cluster_is_an_error(ray_cluster):
    with pytest.raises(EnvironmentLackingError, match=r"no Ray cluster answers at `127\.0\.0\.1:1`"):
        RayProvider().require(HostRequest(cluster=spec("").cluster, options={"address": "127.0.0.1:1"}))


@pytest.mark.parametrize("cpus", [0, -1, "two", True])
def test_a_wrong_number_of_cpus_is_an_error(cpus):
    with pytest.raises(InputError, match="cpus_per_host"):
        bundle_of(spec("").cluster, {"cpus_per_host": cpus})
