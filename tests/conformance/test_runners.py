"""A trial keeps the same promises under every runner: frameworks, a command of the user's, scripted processes, simulations.

Laws about processes hold for runners that start some: a rank that is killed or hangs ends the trial, and no process survives.
"""

import dataclasses
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError, JobError
from oppa.problem.cluster import Cluster
from oppa.problem.command import LaunchCommand
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.model import Model
from oppa.problem.training import Limits
from oppa.simulator.executor import SimulatedExecutor
from oppa.simulator.replay import Record, Replay, ReplayNoise
from oppa.simulator.simulator import Simulator
from oppa.trials import processes, trial_folder
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, ends_at, script_spec

STEPS = 8
LIMITS = Limits(trial_time_s=60, grace_s=1)
IMITATED = dataclasses.replace(LIMITS, trial_time_s=10_000)  # on a clock that costs nothing
FITS = Configuration(dp=2, global_batch=8, micro_batch=1)
TOO_LARGE = Configuration(dp=2, global_batch=8, micro_batch=4)
TINY = Model(layers=4, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256, seq_len=32)
LARGE = dataclasses.replace(TINY, hidden=256, ffn=512)
"""Some 40 MB of weights, gradients and moments."""
FRAMEWORKS = ("torch", "deepspeed", "colossalai")
LOSSES_AGREE = 1e-5
"""Relative, over the first steps in fp32: what reordered sums make of it; tests/training and tests/runners measure it layout by layout."""

COMMAND = """
import sys, time
import oppa_client
trial = oppa_client.open_trial()
if "{memory}" in sys.argv:
    raise MemoryError("as much as it wanted")
for step in range(int(sys.argv[1])):
    time.sleep(0.05)
    if not trial.step(0.05, loss=2 / (step + 1), memory_bytes=1 << 20):
        break
"""
"""The program does without torch, whose import takes seconds on each rank; programs of tests/docs train with it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Holds a runner, a trial that runs, one that is out of memory, and one that runs for long."""

    name: str
    run: Callable[..., TrialResult]
    fits: TrialSpec
    too_large: TrialSpec
    endless: TrialSpec
    launcher: LocalLauncher | None = None
    """Launcher of a case that starts processes."""

    @property
    def limits(self):
        return LIMITS if self.launcher else IMITATED


def framework(name):
    """One of the frameworks' runners on two CPU ranks."""
    launcher = launched(catalog.find("runners", name))
    cluster = Cluster(devices_per_host=2, memory_limit_bytes=1 << 30)
    fits = dataclasses.replace(script_spec(""), configuration=FITS, stated_model=TINY, cluster=cluster, steps=STEPS)
    large = dataclasses.replace(fits, stated_model=LARGE, cluster=dataclasses.replace(cluster, memory_limit_bytes=8 << 20))
    return Case(name, functools.partial(run_trial, launcher), fits, large, dataclasses.replace(fits, steps=5000), launcher)


def command(folder):
    """A program of the user's, under torchrun."""
    launcher = launched(catalog.find("runners", "command"))
    (folder / "program.py").write_text(COMMAND)
    started = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{devices}", str(folder / "program.py"))
    fits = dataclasses.replace(script_spec(""), command=LaunchCommand(argv=(*started, "{steps}")), steps=STEPS)
    large = dataclasses.replace(fits, command=LaunchCommand(argv=(*started, "{steps}", "{{memory}}")))
    return Case("command", functools.partial(run_trial, launcher), fits, large, dataclasses.replace(fits, steps=5000), launcher)


def scripted():
    launcher = launched(SCRIPT_RUNNER)
    specs = [
        script_spec(script, steps=steps) for script, steps in ((f"steps {STEPS} 0.01", STEPS), ("memory", STEPS), ("steps 900 0.1", 900))
    ]
    return Case("script", functools.partial(run_trial, launcher), *specs, launcher)


def simulated():
    problem = load_job(catalog.find("runners", "simulated") / "jobs" / "llama-2-7b.toml")
    simulator, candidates = Simulator.of(problem), problem.candidates()
    fits = {simulator.fits(candidates.configuration(i)): i for i in range(0, len(candidates), 50)}
    spec = functools.partial(TrialSpec.of, problem, study=STUDY, trial=0, steps=STEPS)
    runs, fails = (spec(candidates.configuration(fits[each])) for each in (True, False))
    return Case("simulated", SimulatedExecutor(simulator, seed=0), runs, fails, dataclasses.replace(runs, steps=900))


def replayed():
    records = {FITS: Record(outcome="completed", steps_per_s=5.0, memory_bytes=1 << 20), TOO_LARGE: Record(outcome="out_of_memory")}
    runs, fails = (dataclasses.replace(script_spec(steps=STEPS), configuration=each) for each in (FITS, TOO_LARGE))
    trials = SimulatedExecutor(Replay(records=records, noise=ReplayNoise()), seed=0)
    return Case("replay", trials, runs, fails, dataclasses.replace(runs, steps=900))


def launched(folder):
    """A launcher for a runner; skips loudly where its environment is not made."""
    try:
        return LocalLauncher(load_runner(folder), study=STUDY, grace_s=1)
    except EnvironmentLackingError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def named(*names):
    """Return cases by name; mark those that need their own environment, and those that start ranks with torch or a program."""
    return [pytest.param(name, marks=_marks(name)) for name in names]


def _marks(name):
    return [pytest.mark.environment] * (name in FRAMEWORKS[1:]) + [pytest.mark.slow] * (name in (*FRAMEWORKS, "command"))


@pytest.fixture(params=named(*FRAMEWORKS, "command", "script", "simulated", "replay"), scope="module")
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    made = {"command": lambda: command(folder), "script": scripted, "simulated": simulated, "replay": replayed}
    case = made[request.param]() if request.param in made else framework(request.param)
    yield case
    if case.launcher:
        case.launcher.close()


@pytest.fixture(scope="module")
def ended(case, tmp_path_factory):
    """Return a trial that has run to its end: its result, its folder, and the steps that it reported."""
    folder, reported = tmp_path_factory.mktemp("ended"), []
    return case.run(folder, case.fits, limits=case.limits, on_step=reported.append), folder, reported


def ranks() -> list[processes.Process]:
    """The ranks of the trial that runs now: what has no child itself."""
    own = processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == STUDY)
    return [each for each in own if not processes.descendants(each.pid)]


@dataclasses.dataclass(frozen=True)
class Disturbed:
    """Results of a trial whose rank is killed, and of one whose ranks are stopped."""

    killed: TrialResult
    hung: TrialResult
    stopped: Sequence[processes.Process]
    """The ranks of the second one."""


@pytest.fixture(scope="module")
def disturbed(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    if case.launcher is None:
        pytest.skip(f"{case.name} starts no process")
    stopped = list[processes.Process]()

    def kill(measurement: trial_folder.Measurement) -> None:
        if measurement.step == 2:
            os.kill(max(ranks(), key=lambda each: each.started).pid, signal.SIGKILL)

    def stop(measurement: trial_folder.Measurement) -> None:
        if measurement.step == 2:
            stopped.extend(ranks())
            for each in stopped:
                os.kill(each.pid, signal.SIGSTOP)

    run = functools.partial(case.run, limits=case.limits)
    killed = run(tmp_path_factory.mktemp("killed"), case.endless, on_step=kill)
    return Disturbed(killed, run(tmp_path_factory.mktemp("hangs"), case.endless, on_step=stop, hang_s=2.0), stopped)


@pytest.fixture(scope="module")
def again(case: Case, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """A trial that is repeated, behind those that were disturbed where it has processes."""
    if case.launcher:
        request.getfixturevalue("disturbed")
    return case.run(tmp_path_factory.mktemp("again"), case.fits, limits=case.limits)


def test_a_trial_runs_to_its_end(ended) -> None:
    result, _, reported = ended
    assert (result.outcome, result.steps, result.cause) == ("completed", STEPS, ""), result.traceback
    assert result.estimate.steps_per_s > 0 and result.memory_bytes > 0 and result.seconds >= sum(result.step_times_s) > 0
    assert [measurement.step_time_s for measurement in reported] == list(result.step_times_s)


def test_its_folder_tells_what_ran_and_how_long_it_took(case, ended) -> None:
    result, folder, _ = ended
    assert TrialSpec.read(folder) == case.fits
    lines = [json.loads(line) for line in (folder / trial_folder.MEASUREMENTS).read_text().splitlines()]
    assert [line["step_time_s"] for line in lines] == list(result.step_times_s)


def test_a_stop_rule_ends_it_early(case, tmp_path) -> None:
    result = case.run(tmp_path, case.endless, limits=case.limits, stop_rule=ends_at(3))
    assert result.outcome == "terminated_early" and 3 <= result.steps < case.endless.steps


def test_what_is_out_of_memory_reports_it(case, tmp_path) -> None:
    result = case.run(tmp_path, case.too_large, limits=case.limits)
    assert (result.outcome, result.steps, result.estimate) == ("out_of_memory", 0, None)
    assert result.cause and result.seconds > 0


def test_a_trial_that_takes_too_long_is_timed_out(case, tmp_path) -> None:
    result = case.run(tmp_path, case.endless, limits=dataclasses.replace(case.limits, trial_time_s=1.0, q_min=case.endless.steps))
    # A launcher takes longer than that to start: oppa then adds that no step came, and why that may be.
    silent = case.name == "command" and not result.steps
    expected = "no step was reported within 1 s: the program never called" if silent else "longer than its limit of 1 s"
    assert result.outcome == "timed_out" and expected in result.cause and result.steps < case.endless.steps


def test_what_a_tick_raises_is_passed_on(case, tmp_path) -> None:
    def tick():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(tmp_path, case.fits, limits=case.limits, on_tick=tick)


def test_steps_are_reported_in_order_as_they_come(ended):
    assert [measurement.step for measurement in ended[2]] == list(range(STEPS))


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_trial_and_the_next_one_runs(disturbed: Disturbed) -> None:
    """The next one is that whose ranks hang behind their third step."""
    result = disturbed.killed
    assert (result.outcome, result.steps >= 3) == ("failed", True) and result.cause
    assert disturbed.hung.steps >= 3


def test_ranks_that_hang_are_noticed_and_nothing_survives(disturbed: Disturbed, again: TrialResult) -> None:
    result = disturbed.hung
    assert result.outcome == "timed_out" and result.cause.startswith("hang: no step for")
    assert disturbed.stopped and not any(map(processes.is_living, disturbed.stopped))
    assert again.outcome == "completed"


def test_a_trial_that_is_repeated_has_the_same_losses(case: Case, ended: Any, again: TrialResult) -> None:
    first = ended[0].losses
    assert again.losses == first
    if case.name in FRAMEWORKS:
        assert len(first) == STEPS and first[-1] < first[0]


@pytest.fixture(scope="module")
def losses_of_torch(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[float, ...]]:
    """Return the losses of the torch runner, which trains once."""

    @functools.cache
    def losses() -> tuple[float, ...]:
        case = framework("torch")
        result = case.run(tmp_path_factory.mktemp("torch"), case.fits, limits=case.limits)
        case.launcher.close()
        return result.losses

    return losses


@pytest.mark.parametrize("case", named(*FRAMEWORKS[1:]), indirect=True)
def test_losses_agree_across_frameworks(case: Case, ended: Any, losses_of_torch: Callable[[], tuple[float, ...]]) -> None:
    """The same model, data and seed."""
    assert ended[0].losses == pytest.approx(losses_of_torch(), rel=LOSSES_AGREE)


@pytest.mark.parametrize("name", [*FRAMEWORKS, "command"])
@pytest.mark.parametrize(("given", "message"), [("micro_bach = [1, 2]", "micro_bach"), ("ep = [1, 7]", "ep")])
def test_a_parameter_that_a_runner_does_not_know_is_refused(name, given, message, tmp_path):
    argv = ["train", "{micro_batch}"] if name == "command" else []
    (tmp_path / "job.toml").write_text(
        f'[model]\npreset = "tiny-4m"\n[batch]\nglobal_batch = 8\n[cluster]\ndevices_per_host = 4\nmemory_limit = "1 GiB"\n'
        f'[runner]\nname = "{name}"\n[space.parameters]\n{given}\n'
    )
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml", argv=argv)
