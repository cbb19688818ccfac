"""A tuner waits for slow hosts."""

import dataclasses
import subprocess
import sys

import pytest

from oppa.launchers.hosts import HostsLauncher
from oppa.problem.training import Limits
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
