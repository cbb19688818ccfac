"""The user's own program runs on several hosts: torchrun starts on each with the others' addresses, and one host reports."""

import dataclasses
import sys
import textwrap

import pytest

from oppa import catalog
from oppa.launchers.hosts import HostsLauncher
from oppa.problem.cluster import Cluster
from oppa.problem.command import ConfigFile, LaunchCommand, StepFormat
from oppa.problem.training import Limits
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.trials.conftest import STUDY, TwoHosts, script_spec


@pytest.fixture(scope="module")
def launcher():
    with HostsLauncher(load_runner(catalog.find("runners", "command")), TwoHosts(), study=STUDY, grace_s=1) as launcher:
        yield launcher


@pytest.fixture
def act(launcher, tmp_path):
    """Run a program's text as a trial on two hosts of one rank each."""

    def run(program, *start, words=(), pattern=None, files=()):
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        steps = StepFormat(pattern=pattern) if pattern else None
        command = LaunchCommand(argv=(sys.executable, *start, str(tmp_path / "program.py"), *words), files=tuple(files), steps=steps)
        cluster = Cluster(hosts=2, devices_per_host=1, memory_limit_bytes=1 << 30)
        spec = dataclasses.replace(script_spec(ranks=2), cluster=cluster, command=command)
        return run_trial(launcher, tmp_path / "trial", spec, limits=Limits(trial_time_s=90, grace_s=1))

    return run


@pytest.mark.slow
def test_torchrun_joins_the_hosts_as_it_stands(act, tmp_path):
    program = """
        import oppa_client, torch, torch.distributed as dist
        trial = oppa_client.open_trial()
        dist.init_process_group("gloo")
        for step in range(1000):
            ranks = torch.tensor([float(dist.get_rank())])
            dist.all_reduce(ranks)
            if not trial.step(0.01, loss=float(ranks)):
                break
        print("rank", dist.get_rank(), "of", dist.get_world_size(), "took", step + 1)
    """
    result = act(program, "-m", "torch.distributed.run")
    assert (result.outcome, result.losses) == ("completed", (1.0,) * 4)
    said = (tmp_path / "trial" / "stdout.log").read_text()
    assert "rank 0 of 2 took 4" in said and "rank 1 of 2 took 4" in said


@pytest.mark.parametrize("who", ["True", "host == 1"], ids=["all hosts print", "the last host prints"])
def test_steps_that_are_printed_count_once(act, who):
    program = f"""
        import os, time
        host = int(os.environ["PET_NODE_RANK"])
        for step in range(1000):
            time.sleep(0.02)
            if {who}:
                print(f"step {{step}}: took 20.0 ms", flush=True)
    """
    result = act(program, pattern=r"took (?P<ms>[\d.]+) ms")
    assert (result.outcome, result.steps, set(result.step_times_s)) == ("completed", 4, {0.02})


def test_a_silent_host_ends_with_the_one_whose_format_is_recognised(act):
    program = """
        import os, time
        for step in range(1000):
            time.sleep(0.02)
            if os.environ["PET_NODE_RANK"] == "0":
                print(f"step {step} 20.0 ms", flush=True)
    """
    result = act(program)
    assert (result.outcome, result.steps) == ("completed", 4)


def test_each_host_has_a_configuration_file_of_its_own(act, tmp_path):
    (tmp_path / "settings.json").write_text('{"tp": 8}')
    program = """
        import json, os, pathlib, oppa_client, sys
        host = os.environ["PET_NODE_RANK"]
        print("host", host, "has", json.loads(pathlib.Path(sys.argv[1]).read_text()), "in", sys.argv[1])
        trial = oppa_client.Trial(os.environ["OPPA_TRIAL"], rank=int(host), world=2)
        while trial.step(0.01):
            pass
    """
    file = ConfigFile(name="settings", path=str(tmp_path / "settings.json"), keys={"tp": "{tp}"})
    assert act(program, words=["{settings}"], files=[file]).outcome == "completed"
    said = (tmp_path / "trial" / "stdout.log").read_text()
    assert f"host 0 has {{'tp': 1}} in {tmp_path}/trial/settings.json" in said
    assert f"host 1 has {{'tp': 1}} in {tmp_path}/trial/host1/settings.json" in said
