"""The ways in which a trial on two hosts can end, whatever launcher holds them; each leaves both hosts fit for the next.

A test module has a class that inherits from `TrialLaws`, and a fixture `trials` with a `Trials`. Its fixture `act` runs a script as a
trial, and then one that completes.
"""

import dataclasses
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from oppa.launchers import hosts
from oppa.launchers.hosts import PATIENCE_S, SILENCE_S, HostPool, HostsLauncher
from oppa.problem.training import Limits
from oppa.trials import processes
from oppa.trials.launcher import LOST
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.sampling import nightly
from tests.trials.conftest import ends_at, script_spec

LONG = "steps 5000 0.02"


def spec(script: str, *, ranks: int = 2, steps: int = 4) -> TrialSpec:
    """A script, on two hosts with half of the ranks each."""
    alone = script_spec(script, ranks=ranks, steps=steps)
    return dataclasses.replace(alone, cluster=dataclasses.replace(alone.cluster, hosts=2, devices_per_host=ranks // 2))


def parent_of(pid: int) -> int:
    """The process id of its parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def amid(do: Callable[[], object]) -> Callable[..., None]:
    """Do something once, while the trial runs."""

    def on_step(measurement) -> None:  # type: ignore[no-untyped-def]
        if measurement.step == 2:
            do()

    return on_step


class Trials:
    """Trials on held hosts, one after the other."""

    host_variable = "OPPA_HOST"
    """Variable that distinguishes the hosts in the environment of their ranks."""

    def __init__(self, launcher: HostsLauncher, pool: HostPool, study: str) -> None:
        self.launcher, self.pool, self.study = launcher, pool, study

    @property
    def hosts(self) -> Sequence[str]:
        """The values of that variable, in the order of the hosts."""
        return ("0", "1")

    def run(self, folder: Path, script: str, *, ranks: int = 2, steps: int = 4, **watching: object) -> TrialResult:
        """A trial with half of its ranks on each host."""
        wanted = dataclasses.replace(spec(script, ranks=ranks, steps=steps), study=self.study)
        return run_trial(self.launcher, folder, wanted, limits=Limits(trial_time_s=60, grace_s=1), **watching)  # type: ignore[arg-type]

    def living(self, **variables: str) -> set[int]:
        """Return the processes of this study on all hosts, or those with such variables."""
        wanted = {processes.STUDY_TAG: self.study, **variables}.items()
        return {process.pid for process in processes.tagged(lambda environment: wanted <= environment.items())}

    def agent(self, host: int) -> int:
        """The process id of a host's agent: the first that has the variables of the host."""
        there = self.living(**self.on(host))
        (agent,) = (pid for pid in there if parent_of(pid) not in there)
        return agent

    def on(self, host: int) -> Mapping[str, str]:
        """The variables that only processes on this host have."""
        return {self.host_variable: self.hosts[host]}


class TrialLaws:
    """States what holds for trials on two hosts of every launcher."""

    @pytest.mark.parametrize("per_host", [1, 2])
    def test_ranks_fill_the_hosts_in_their_order(self, act, trials, tmp_path, per_host):
        result = act(f"variable {trials.host_variable}\nsteps 4 0.01", ranks=2 * per_host)
        assert (result.outcome, result.steps) == ("completed", 4)
        printed = re.findall(r"^rank (\d): (\S+)$", (tmp_path / "stdout.log").read_text(), re.MULTILINE)
        assert sorted(printed) == [(str(rank), trials.hosts[rank // per_host]) for rank in range(2 * per_host)]

    def test_a_stop_rule_ends_it_at_a_step(self, act):
        result = act(LONG, steps=5000, stop_rule=ends_at(3))
        assert (result.outcome, result.cause) == ("terminated_early", "")
        assert 3 <= result.steps < 5000

    def test_running_out_of_memory_on_the_second_host_is_reported(self, act):
        result = act("steps 1 0.01\nlimit 64 @ 1\nallocate 256 @ 1\nsleep 100")
        assert (result.outcome, result.rank) == ("out_of_memory", 1)

    def test_a_killed_rank_of_the_second_host_is_named(self, act):
        result = act("steps 2 0.01\nsignal SIGKILL @ 3\nsleep 100", ranks=4)
        assert (result.outcome, result.cause, result.rank) == ("failed", "rank 3 was killed by SIGKILL", 3)

    def test_a_hang_is_found_and_ended(self, act):
        result = act("daemon\nforget\nsteps 3 0.01\nsignal SIGSTOP\nsleep 100", hang_s=0.5)
        assert (result.outcome, result.steps) == ("timed_out", 3)
        assert result.cause.startswith("hang: no step for ")

    def test_the_traceback_of_a_rank_of_the_second_host_is_kept(self, act):
        result = act("steps 2 0.01\nraise 'no good' @ 1\nsleep 100")
        assert (result.outcome, result.cause, result.rank) == ("failed", "RuntimeError: no good", 1)
        assert "do_raise" in result.traceback

    def test_the_logs_of_both_hosts_are_the_trials(self, act, trials, tmp_path):
        act("print 3\nraise 'no good'")
        head = f"--- host 1, {trials.pool.names[1]}\n"
        assert (tmp_path / "stdout.log").read_text() == f"xxx\nthe end\n\n{head}xxx\nthe end\n"
        first, _, second = (tmp_path / "stderr.log").read_text().partition(head)
        assert first.count("do_raise") == second.count("do_raise") == 1
        assert not (tmp_path / "host1").exists()

    @pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(signal.SIGSTOP)], ids=["killed", "stopped"])
    def test_a_host_whose_agent_is_silent_interrupts_the_trial(self, act, trials, number, monkeypatch):
        monkeypatch.setattr(hosts, "SILENCE_S", 5.0)
        result = act(LONG, steps=5000, on_step=amid(lambda: os.kill(trials.agent(1), number)))
        assert (result.outcome, result.cause) == ("interrupted", f"{LOST} {trials.pool.names[1]}: it no longer responds")
        assert result.seconds < SILENCE_S + PATIENCE_S
