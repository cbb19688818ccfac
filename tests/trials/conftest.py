"""A runner that acts out a script, real launchers for it, and a trial in one call."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from oppa import catalog
from oppa.launchers import agent
from oppa.launchers.hosts import HostsLauncher
from oppa.problem.cluster import Cluster
from oppa.problem.command import LaunchCommand, Originals, StepFormat
from oppa.problem.command_table import formats
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Limits, Training
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.sampling import nightly, slow

SCRIPT_RUNNER = Path(__file__).parent / "runners" / "script"
STUDY = f"{os.getpid():08x}-test-of-trials"


def ends_at(count):
    """Return a stop rule that ends a trial early once it has taken a number of steps."""
    return lambda step_times_s, start_s: "terminated_early" if len(step_times_s) >= count else None


def script_spec(script="steps 4 0.01", *, ranks=2, steps=4, **cluster):
    return TrialSpec(
        study=STUDY,
        trial=0,
        configuration=Configuration(dp=ranks, global_batch=8, micro_batch=1),
        stated_model=Model(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, vocab=32, seq_len=8),
        cluster=Cluster(devices_per_host=ranks, memory_limit_bytes=1 << 30, **cluster),
        training=Training(corpus=script),
        steps=steps,
    )


@pytest.fixture
def make_spec():
    return script_spec


@pytest.fixture
def script_runner():
    return load_runner(SCRIPT_RUNNER)


class TwoHosts:
    """This machine, twice."""

    addresses = names = ("127.0.0.1", "127.0.0.1")

    def devices(self, spec, on_tick):
        return contextlib.nullcontext()

    def commands(self, task):
        return [["env", f"{agent.HOST}={host}", *task.argv] for host in range(2)]

    def revoked(self):
        return ""

    def kill(self):
        pass


@pytest.fixture(scope="module", params=["warm", "command", *slow("cold"), *nightly("hosts")])
def launcher(request):
    """One launcher for all the bad trials of a module: each must leave it fit for the next.

    By default the tests of Slurm and of Ray have those of several hosts, in tests/launchers.
    """
    runner = load_runner(SCRIPT_RUNNER)
    if request.param == "hosts":
        with HostsLauncher(runner, TwoHosts(), study=STUDY, grace_s=1) as launcher:
            launcher.kind = "hosts"
            yield launcher
        return
    if request.param == "command":
        runner = dataclasses.replace(runner, command=("{python}", "{program}"), warm=False)
    with LocalLauncher(runner, study=STUDY, grace_s=1, warm=request.param == "warm") as launcher:
        launcher.kind = request.param
        yield launcher


@pytest.fixture
def act(launcher, tmp_path):
    """Run a script as a trial."""

    def run(script, *, ranks=2, steps=4, trial_time_s=30, q_min=5, folder=tmp_path, cluster=None, **watching):
        spec = script_spec(script, ranks=ranks, steps=steps, **(cluster or {}))
        if launcher.kind == "hosts":
            spec = dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, hosts=2, devices_per_host=-(-ranks // 2)))
        limits = Limits(trial_time_s=trial_time_s, q_min=q_min, grace_s=1)
        return run_trial(launcher, folder, spec, limits=limits, **watching)

    return run


def make_environment(folder: Path, torch: str) -> Path:
    """An environment of a user's, with a torchrun and what pip leaves of torch; its folder of commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    if torch:
        (site / f"torch-{torch}.dist-info").mkdir()
        (site / f"torch-{torch}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    script(folder / "bin" / "torchrun", f"#!{folder}/bin/python\n")
    return folder / "bin"


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


COMMAND_LIMITS = Limits(trial_time_s=60, grace_s=1)


@pytest.fixture(scope="module")
def command_launcher():
    """The launcher of users' own programs."""
    with LocalLauncher(load_runner(catalog.find("runners", "command")), study=STUDY, grace_s=1) as launcher:
        yield launcher


@pytest.fixture
def command_trial(command_launcher, tmp_path):
    """Run a program's text as a trial; `words` come behind it."""

    def run(program, *words, steps=4, pattern=None, format=None, files=(), ranks=1, limits=None, harmless=False, **watching):
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        pattern = formats()[format]["pattern"] if format else pattern
        how = StepFormat(pattern=pattern, format=format or "") if pattern else None
        start = [sys.executable]
        if ranks > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{devices}"]
        command = LaunchCommand(argv=(*start, str(tmp_path / "program.py"), *words), files=tuple(files), steps=how)
        command = dataclasses.replace(command, originals=Originals(argv=command.argv)) if harmless else command
        spec = dataclasses.replace(script_spec(steps=steps, ranks=ranks), command=command)
        return run_trial(command_launcher, tmp_path / "trial", spec, limits=limits or COMMAND_LIMITS, **watching)

    return run
