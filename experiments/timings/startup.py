"""Measure the time to a trial's first step: forked from a fork server, against a cold torchrun."""

import dataclasses
import tempfile
from pathlib import Path

from experiments.timings.interleaved import Measure, compared
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.presets import PRESETS
from oppa.problem.training import Limits, Training
from oppa.report.record import Section
from oppa.trials.launcher import Launcher
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import Runner, load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec

RANKS = 4
TORCHRUN = ("{python}", "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}", "{program}")


def startup(repeats: int) -> list[Section]:
    """Measure the seconds from the start of a trial of 4 ranks to its first step, alternately for both ways."""
    warm = load_runner(catalog.find("runners", "torch"))
    cold = dataclasses.replace(warm, warm=False, command=TORCHRUN)
    with tempfile.TemporaryDirectory() as folder, local_launcher(warm) as forked, local_launcher(cold) as executed:
        ours, theirs = set_up(forked, Path(folder, "trials", "warm")), set_up(executed, Path(folder, "trials", "cold"))
        names = ("fork server, s", "torchrun, s", "torchrun / fork server")
        rows, ratio = compared(ours, theirs, repeats, names=names, by=lambda warm_s, cold_s: cold_s / warm_s)
    text = f"{RANKS} ranks, {repeats} pairs in turn: the fork server is {ratio:.1f} times faster."
    return [Section(title="Trial set-up", text=text, columns=("start", "median (min - max)"), rows=rows)]


def local_launcher(runner: Runner) -> LocalLauncher:
    """Return a launcher of this machine."""
    return LocalLauncher(runner, study="bench-start-up", grace_s=5.0)


def spec() -> TrialSpec:
    """Return a trial of 4 ranks and two steps."""
    return TrialSpec(
        study="bench",
        trial=0,
        configuration=Configuration(dp=2, tp=2, global_batch=8, micro_batch=4),
        stated_model=PRESETS["tiny-1m"],
        cluster=Cluster(devices_per_host=RANKS, memory_limit_bytes=1 << 30),
        training=Training(),
        steps=2,
    )


def set_up(launcher: Launcher, folder: Path) -> Measure:
    """Return the measurement of one trial: seconds from its start to its first step."""

    def measure() -> float:
        result = run_trial(launcher, folder, spec(), limits=Limits(trial_time_s=300.0))
        if result.setup_s is None:
            raise EnvironmentLackingError(
                f"a trial of the torch runner ended as {result.outcome}: {result.cause}", hint="run `oppa doctor`"
            )
        return result.setup_s

    return measure
