"""A tuner waits for slow hosts."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time

import pytest

from oppa.launchers import hosts
from oppa.launchers.agent_client import AgentClient
from oppa.launchers.hosts import HostsLauncher, HostsTrial
from oppa.problem.training import Limits
from oppa.trials import freezes
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, TwoHosts, script_spec

FULL_FROM_THE_SECOND_LOOK = '#!/bin/sh\nif mkdir "$0.$OPPA_HOST" 2>/dev/null; then echo 0; else echo 9000; fi\n'


@pytest.mark.slow
@pytest.mark.nightly  # waits as long as a host waits for its devices
def test_a_host_that_waits_for_its_devices_memory_is_not_taken_for_dead(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(FULL_FROM_THE_SECOND_LOOK)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    spec = script_spec()
    spec = dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, hosts=2, devices_per_host=1, device="H100"))
    with HostsLauncher(load_runner(SCRIPT_RUNNER), TwoHosts(), study=STUDY, grace_s=1) as launcher:
        result = run_trial(launcher, tmp_path / "trial", spec, limits=Limits(trial_time_s=60, grace_s=1))
    assert (result.outcome, result.cause) == ("completed", "")


def test_an_agent_starts_without_packages_that_compute() -> None:
    """One starts on each host for every trial."""
    program = "import sys, oppa.launchers.agent; print(*{'torch', 'numpy', 'pandas', 'scipy'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "\n"


def test_silence_while_this_process_is_frozen_too_loses_no_host(tmp_path, monkeypatch):
    """Slurm suspends the hosts of a job together."""
    for module, name, seconds in ((hosts, "START_S", 0.0), (hosts, "SILENCE_S", 0.3), (freezes, "FREEZE_S", 0.2)):
        monkeypatch.setattr(module, name, seconds)
    agents = AgentClient([["cat"]], hosts=2, environment={"PATH": os.environ["PATH"]}, grace_s=1, log=tmp_path / "log")
    with (
        contextlib.closing(agents),
        HostsLauncher(load_runner(SCRIPT_RUNNER), TwoHosts(), study=STUDY, grace_s=1) as launcher,
    ):
        trial = HostsTrial(launcher, agents, TwoHosts(), tmp_path, launch_id=1)
        trial.poll()
        time.sleep(0.4)
        assert trial.poll() is None
        while (found := trial.poll()) is None:
            time.sleep(0.02)
    assert found.revoked == "lost host 127.0.0.1: it no longer responds"


class Requeued(TwoHosts):
    """Waits in a queue first."""

    @contextlib.contextmanager
    def devices(self, spec, on_tick):
        time.sleep(0.1)
        on_tick()
        yield


def test_the_time_in_which_a_pool_waits_for_its_hosts_is_queue_time_also_if_the_user_ends_it():
    def ends():
        raise KeyboardInterrupt

    with HostsLauncher(load_runner(SCRIPT_RUNNER), Requeued(), study=STUDY, grace_s=1) as launcher:
        with pytest.raises(KeyboardInterrupt), launcher.devices(script_spec(), ends):
            pytest.fail("it has its hosts")
        waited_s = launcher.queue_time.seconds
        time.sleep(0.02)
        assert launcher.queue_time.seconds == waited_s >= 0.1
