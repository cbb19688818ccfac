"""A command to Slurm states what a step inherits and what a job requests; no Slurm is needed."""

import dataclasses

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.launchers.agent import AgentTask
from oppa.launchers.provider import HostRequest, WaitingTuner
from oppa.launchers.slurm import SlurmHosts, SlurmNode, srun
from oppa.launchers.slurm_job import request_words
from oppa.launchers.slurm_provider import SlurmProvider
from oppa.launchers.step_provider import StepProvider
from oppa.problem.cluster import Cluster
from oppa.problem.training import Limits
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec

CLUSTER = Cluster(hosts=2, devices_per_host=8, device="H100", memory_limit_bytes=2**36)
NODE = SlurmNode(name="n1", address="n1", cpus=64, gpus=8, memory_mib=0)


@pytest.mark.parametrize(
    "name",
    ["SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_EXPORT_ENV", "SLURM_CPU_BIND_TYPE", "SLURM_GPUS_PER_TASK", "SRUN_CPUS_PER_TASK"],
)
def test_a_step_repeats_no_request_of_the_job_that_encloses_it(name) -> None:
    words = srun({name: "1", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "token", "SLURMD_NODENAME": "n1", "PATH": "/bin"})
    assert words == ["env", f"--unset={name}", "srun", "--export=ALL"]


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ([], True),
        (["--partition=gpu", "--gres=nvme:1"], True),
        (["--gres=gpu:h100:8"], False),
        (["--gres=nvme:1,gpu:8"], False),
        (["--gpus-per-node=h100:8"], False),
        (["--gpus=16"], False),
        (["--gpus-per-task=8"], False),
    ],
)
def test_gpus_are_requested_once(options, own) -> None:
    words = request_words(CLUSTER, options, slots=1)
    assert ("--gpus-per-node=8" in words) is own
    assert words[len(words) - len(options) :] == options


def test_an_allocation_that_has_shrunk_is_reported() -> None:
    assert SlurmHosts("7", CLUSTER, (NODE, dataclasses.replace(NODE, name="n2", address="n2"))).names == ("n1", "n2")
    with pytest.raises(EnvironmentLackingError, match="this job needs 2 hosts; Slurm's job 7 has 1"):
        SlurmHosts("7", CLUSTER, (NODE,))


COMMANDS = {
    "scontrol": """
case $2 in
    job) echo "JobId=7 JobState=$(cat $(dirname $0)/state) NodeList=n1 Nodes=n1 CPU_IDs=0-15 Mem=0 GRES=gpu:8" ;;
    hostnames) echo n1 ;;
    node) echo "NodeName=n1 NodeAddr=n1" ;;
esac""",
    "squeue": "cat $(dirname $0)/steps",
    "scancel": "",
}
HALF = dataclasses.replace(CLUSTER, hosts=1, devices_per_host=4)


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Take the commands of Slurm from a folder, and return the file with its steps. Job 7 runs on a node of 8 GPUs."""
    for name, script in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.setattr(slurm, "GONE_S", 0.2)
    return tmp_path / "steps"


def overlaps(hosts: SlurmHosts) -> bool:
    """Return whether the step of a trial shares its devices with other steps."""
    (command,) = hosts.commands(AgentTask(runner="r", runs=False, study="s", hosts=1, grace_s=1))
    return "--overlap" in command


@pytest.mark.parametrize("slots", [1, 2])
def test_a_step_overlaps_with_one_that_cannot_be_ended_unless_other_tuners_share_the_host(slots, steps) -> None:
    hosts = SlurmHosts("7", HALF, (NODE,), slots=slots)
    (name,) = (word for word in hosts.on_first([]) if word.startswith("--job-name="))
    steps.write_text(f"7.3 {name.removeprefix('--job-name=')}\n")
    assert not overlaps(hosts)
    hosts.kill()
    assert overlaps(hosts) is (slots == 1)
    steps.write_text("")
    assert not overlaps(hosts), "it has ended"


def test_trials_that_share_a_host_are_refused_within_a_step(steps, tmp_path, monkeypatch) -> None:
    tuner = WaitingTuner(folder=tmp_path, name="job", grace_s=1, on_tick=lambda: None)
    request = HostRequest(cluster=HALF, parallel=2)
    with SlurmProvider().open(request, tuner) as backend:
        assert backend.tuners == 2
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(EnvironmentLackingError, match="a step of Slurm's job 7"), SlurmProvider().open(request, tuner):
        pytest.fail("two trials would have the same devices")


def test_a_step_of_a_launch_line_that_ends_with_its_job_is_interrupted_and_the_next_one_waits_for_the_job(steps, tmp_path) -> None:
    def trial(script: str):
        return run_trial(launcher, tmp_path / "trial", script_spec(script, ranks=1), limits=Limits())

    tuner = WaitingTuner(folder=tmp_path, name="job", grace_s=1, on_tick=lambda: None)
    with (
        StepProvider().open(HostRequest(cluster=HALF), tuner) as backend,
        backend.launcher(load_runner(SCRIPT_RUNNER), study=STUDY, grace_s=1) as launcher,
    ):
        assert trial("raise 'no good'").outcome == "failed"
        ended = trial(f"shell 'printf PREEMPTED > {tmp_path}/state'\nraise 'no good'")
        assert (ended.outcome, ended.cause) == ("interrupted", "Slurm's job 7 is PREEMPTED")
        with pytest.raises(EnvironmentLackingError, match="Slurm's job 7 has ended: PREEMPTED"):
            trial("steps 4 0.01")
