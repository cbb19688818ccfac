"""What a trial promises, whoever runs it: processes that act out a script, the simulator, or a table of measurements."""

import dataclasses
import functools
import json

import pytest

from oppa import catalog
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.training import Limits
from oppa.simulator.replay import Noise, Record, Replay
from oppa.simulator.simulator import Simulator
from oppa.simulator.trial import ImitatedTrials
from oppa.trials import wire
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.wire import TrialSpec
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec

STEPS = 8
LIMITS = Limits(trial_time_s=1000, grace_s=1)
FITS = Configuration(dp=2, global_batch=8, micro_batch=1)
TOO_LARGE = Configuration(dp=2, global_batch=8, micro_batch=4)


@dataclasses.dataclass
class Case:
    """A runner, a trial that runs and one that is out of memory."""

    run: object
    fits: TrialSpec
    too_large: TrialSpec
    wall_clock: bool = False


def scripted():
    launcher = LocalLauncher(load_runner(SCRIPT_RUNNER), study=STUDY, grace_s=1)
    specs = [script_spec(script, steps=STEPS) for script in (f"steps {STEPS} 0.01", "memory")]
    return Case(functools.partial(run_trial, launcher), *specs, wall_clock=True), launcher.close


def simulated():
    problem = load_job(catalog.find("runners", "simulated") / "jobs" / "llama-2-7b.toml")
    simulator, candidates = Simulator.of(problem), problem.candidates()
    fits = {simulator.fits(candidates.configuration(i)): i for i in range(0, len(candidates), 50)}
    spec = functools.partial(TrialSpec.of, problem, study=STUDY, trial=0, steps=STEPS)
    return Case(ImitatedTrials(simulator, seed=0), *(spec(candidates.configuration(fits[each])) for each in (True, False))), None


def replayed():
    records = {FITS: Record(outcome="completed", steps_per_s=5.0, memory_bytes=1 << 20), TOO_LARGE: Record(outcome="out_of_memory")}
    specs = [dataclasses.replace(script_spec(steps=STEPS), configuration=each) for each in (FITS, TOO_LARGE)]
    return Case(ImitatedTrials(Replay(records=records, noise=Noise()), seed=0), *specs), None


@pytest.fixture(params=[scripted, simulated, replayed], ids=lambda make: make.__name__, scope="module")
def case(request):
    made, close = request.param()
    yield made
    if close:
        close()


def test_a_trial_runs_to_its_end(case, tmp_path) -> None:
    told = []
    result = case.run(tmp_path, case.fits, limits=LIMITS, on_step=told.append)
    assert (result.outcome, result.steps, result.cause) == ("completed", STEPS, "")
    assert result.estimate.steps_per_s > 0 and result.memory_bytes > 0 and result.seconds >= sum(result.step_times_s) > 0
    assert [measurement.step_time_s for measurement in told] == list(result.step_times_s)


def test_its_folder_tells_what_ran_and_how_long_it_took(case, tmp_path) -> None:
    result = case.run(tmp_path, case.fits, limits=LIMITS)
    assert TrialSpec.read(tmp_path) == case.fits
    lines = [json.loads(line) for line in (tmp_path / wire.MEASUREMENTS).read_text().splitlines()]
    assert [line["step_time_s"] for line in lines] == list(result.step_times_s)


def test_a_judge_ends_it_early(case, tmp_path) -> None:
    slow = case.fits if not case.wall_clock else script_spec(f"steps {STEPS} 0.2", steps=STEPS)
    result = case.run(tmp_path, slow, limits=LIMITS, judge=lambda times: len(times) >= 3)
    assert result.outcome == "terminated_early" and 3 <= result.steps < STEPS


def test_what_is_out_of_memory_says_so(case, tmp_path) -> None:
    result = case.run(tmp_path, case.too_large, limits=LIMITS)
    assert (result.outcome, result.steps, result.estimate) == ("out_of_memory", 0, None)
    assert result.cause and result.seconds > 0


def test_a_trial_that_takes_too_long_is_timed_out(case, tmp_path) -> None:
    slow = case.fits if not case.wall_clock else script_spec(f"steps {STEPS} 5", steps=STEPS)
    result = case.run(tmp_path, slow, limits=dataclasses.replace(LIMITS, trial_time_s=1.0))
    assert result.outcome == "timed_out" and "longer than its limit of 1 s" in result.cause and result.steps < STEPS


def test_what_a_tick_raises_is_passed_on(case, tmp_path) -> None:
    def tick():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(tmp_path, case.fits, limits=LIMITS, on_tick=tick)
