"""The profile of a small simulated job has its measurements, its decisions, and the table's description of itself."""

import math

import numpy as np
import pytest
import torch

from experiments.profile.regret import regret, trajectories
from experiments.profile.simulated import simulate_profile
from oppa.problem.batches import batches_of, over
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.executor import SimulatedExecutor
from oppa.simulator.simulator import Simulator
from oppa.study import Study
from oppa.table import Table
from oppa.tuning.designer import Observation
from oppa.tuning.designers.active_profiling import SAFE, ActiveProfiling
from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling
from oppa.tuning.profile import profile
from oppa.tuning.stopping import Incumbent, never, precise
from oppa.tuning.trial_executor import TrialExecutor
from tests.jobs import problem_of

JOB = """
model = {preset = "bert-base"}
batch = {global_batch = 64}
cluster = {devices_per_host = 8, device = "A5000", memory_limit = "8 GiB"}
runner = {name = "simulated"}
training = {precision = "bf16"}
limits = {q_max = 20, trial_time = "10 min"}
[space.parameters]
micro_batch = [8, 16, 32, 64]
zero_stage = [0, 1]
pp = [1, 2]
model_chunks = [1, 2]
dp_bucket_mb = 25
zero_bucket_mb = 24
overlap_zero_comm = true
overlap_zero_allgather = false
overlap_p2p = true
recompute = "none"
"""
BATCHES = (32, 64, 128, 256)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    problem = over(problem_of(JOB, tmp_path_factory.mktemp("job")), BATCHES)
    return BenchmarkTask(name="small", problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The same with two batches alone, for studies on disk."""
    problem = over(problem_of(JOB, tmp_path_factory.mktemp("job")), BATCHES[:2])
    return BenchmarkTask(name="small", problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))


@pytest.fixture(scope="module")
def exhaustive(task):
    return simulate_profile(task, ExhaustiveProfiling(task.problem, task.candidates), never(task.problem.limits), seed=0)


@pytest.fixture(scope="module")
def profiled(task):
    """An active profiler, and what it found."""
    profiler = ActiveProfiling(task.problem, task.candidates, seed=0, bound=0.01)
    return profiler, simulate_profile(task, profiler, precise(task.problem.limits), seed=0)


@pytest.fixture
def active(task):
    return ActiveProfiling(task.problem, task.candidates, seed=0, bound=0.01)


class Unmoved:
    """Stops the search after so many trials."""

    def __init__(self, trials: float = math.inf) -> None:
        self.left = trials

    def started(self, lease) -> None: ...

    def stepped(self, measurement) -> None: ...

    def ended(self, lease, result) -> None:
        self.left -= 1

    def tick(self) -> None:
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.fixture
def run_profile(small, tmp_path):
    """Profile in a folder; None where that is broken off."""

    def run_profile(profiler, *, trials: float = math.inf):
        problem = small.problem
        with Study.create(tmp_path / "T", problem.to_dict(), problem.fingerprint) as study:
            if not study.sessions():  # a process opens one session
                study.open_session({})
            executor = TrialExecutor(study, problem, SimulatedExecutor(small.simulator, seed=0), Unmoved(trials), simulated=True)
            try:
                profile(executor, small.candidates, profiler, command="oppa profile", simulated=True)
            except KeyboardInterrupt:
                return None, study.trials()
            return Table.read(tmp_path / "T"), study.trials()

    return run_profile


@pytest.mark.slow
def test_an_exhaustive_profile_tries_everything_once_but_what_cannot_fit(task, exhaustive) -> None:
    complete = ExhaustiveProfiling(task.problem, task.candidates)
    again = simulate_profile(task, complete, never(task.problem.limits), seed=0)
    assert again.trials == exhaustive.trials == len(task.candidates) - complete.pruned
    assert complete.pruned > 0
    fitting = {configuration for configuration in task.candidates if task.simulator.steps_per_s(configuration)}
    assert {row.configuration for row in exhaustive.rows} == fitting
    assert all(row.source == "measured" for row in exhaustive.rows)


def test_the_first_trials_of_an_exhaustive_profile_are_the_best_of_each_batch(task) -> None:
    complete, taken = ExhaustiveProfiling(task.problem, task.candidates), set[int]()
    while len(taken) < len(BATCHES):
        taken.add(complete.suggest(taken))
    assert {task.candidates.configuration(each).global_batch for each in taken} == set(BATCHES)


@pytest.mark.slow
def test_an_active_profile_decides_as_well_with_a_third_of_the_seconds(task, exhaustive, profiled) -> None:
    active, found = profiled
    assert active.satisfied and active.loss.mean <= active.loss.worst <= 0.01
    assert found.seconds < exhaustive.seconds / 3
    assert regret(found.rows, exhaustive.rows, task.simulator.steps_per_s, BATCHES).worst < 0.02


@pytest.mark.slow
def test_a_table_of_an_active_profile_has_the_promising_and_nothing_that_does_not_fit(task, profiled) -> None:
    _, found = profiled
    sources = {row.source for row in found.rows}
    assert sources == {"measured", "predicted"}
    assert all(task.simulator.steps_per_s(row.configuration) for row in found.rows)
    predicted = [(row.strategy, row.configuration.global_batch) for row in found.rows if row.source == "predicted"]
    assert len(set(predicted)) == len(predicted)
    truths = [task.simulator.steps_per_s(row.configuration) for row in found.rows]
    distances = [math.log(truth / row.steps_per_s) / row.log_stddev for row, truth in zip(found.rows, truths, strict=True)]
    assert np.mean(np.abs(distances) < 2) > 0.85


def test_nothing_is_known_before_anything_ran(task, active) -> None:
    active.assess()
    assert active.known() == [] and active.loss is None and not active.satisfied


def test_what_needs_no_less_than_what_ran_out_of_memory_is_not_suggested(task, active) -> None:
    candidates = task.candidates
    largest = max(range(len(candidates)), key=lambda each: candidates.configuration(each).micro_batch)
    out = Observation(candidate=largest, outcome="out_of_memory", log_steps_per_s=None, log_variance=None, memory_bytes=None)
    active.update([out])
    assert active.pruned > 0
    beyond = {each for each in range(len(candidates)) if active._surrogate.infeasible[each]}
    taken = {largest}
    for _ in range(5):
        taken.add(active.suggest(taken))
    assert not (taken - {largest}) & beyond


def test_what_is_chosen_untried_is_predicted_to_fit_safely(task, active) -> None:
    candidate = active.suggest(set())
    configuration = task.candidates.configuration(candidate)
    rate, memory = task.simulator.steps_per_s(configuration), task.simulator.memory_bytes(configuration)
    values = {"log_variance": 1e-4, "memory_bytes": memory, "step_times_s": (1 / rate,) * 6, "seconds": 20.0}
    active.update([Observation(candidate=candidate, outcome="completed", log_steps_per_s=math.log(rate), **values)])
    view, _ = active._assessed()
    assert (view.fits[view.chosen] >= SAFE).all() and view.fits[candidate] == 1


@pytest.mark.slow
def test_a_profile_that_is_broken_off_leaves_a_table_and_goes_on_where_it_was(small, run_profile, tmp_path) -> None:
    assert run_profile(ExhaustiveProfiling(small.problem, small.candidates), trials=5)[0] is None
    part = Table.read(tmp_path / "T")
    part.require_for(small.problem)
    assert not part.origin.complete and len(part.rows) == 5 == part.origin.trials
    table, trials = run_profile(ExhaustiveProfiling(small.problem, small.candidates))
    assert table.origin.complete and table.origin.method == "exhaustive"
    counted = [trial.configuration for trial in trials if trial.counts]
    assert len(set(counted)) == len(counted) == table.origin.trials
    ran = {trial.configuration: trial.id for trial in trials if trial.counts and trial.feasible}
    assert {row.configuration: row.trials for row in table.rows} == {each: (id,) for each, id in ran.items()}


@pytest.mark.slow
def test_an_active_profile_says_how_sure_it_is_and_uses_all_trials_there_are(small, run_profile) -> None:
    table, trials = run_profile(ActiveProfiling(small.problem, small.candidates, seed=0, bound=0.01))
    assert (table.origin.method, table.origin.loss_bound, table.origin.complete) == ("active", 0.01, True)
    assert table.origin.expected_loss <= 0.01
    again, more = run_profile(
        ActiveProfiling(small.problem, small.candidates, seed=0, bound=0.02)
    )  # fitted anew, it is as sure but for a little
    assert len(more) == len(trials)
    assert {row.configuration for row in table.rows if row.trials} == {row.configuration for row in again.rows if row.trials}


def test_trajectories_stay_in_range_and_differ() -> None:
    courses = trajectories((16, 1024))
    assert len(courses) == 5
    for scales in courses.values():
        assert scales.min() >= 8 * (1 - 1e-9) and scales.max() <= 2048 * (1 + 1e-9)
    assert (np.diff(courses["up and down"]) < 0).any() and (np.diff(courses["slow growth"]) >= 0).all()


def test_a_decision_that_does_not_fit_gets_nothing(task, exhaustive) -> None:
    rows, batches = exhaustive.rows, batches_of(task.problem.space)
    assert regret(rows, rows, task.simulator.steps_per_s, batches).worst == pytest.approx(0)
    small = [row for row in rows if row.configuration.global_batch == 32]
    lost = regret(rows, small, lambda each: 1.0 if each.global_batch == 32 else None, batches)
    assert lost.worst == pytest.approx(1 - np.mean([scales < 40 for scales in trajectories(batches).values()], axis=1).min(), abs=0.2)
    assert lost.worst > 0.5


def test_more_batches_have_one_surrogate_and_one_batch_has_the_plain_one(task) -> None:
    surrogate = ActiveProfiling(task.problem, task.candidates, seed=0, bound=0.01)._surrogate
    assert any(name.startswith("fixed_") for name in surrogate.log_rate.cost.names)
    assert isinstance(surrogate.log_rate.points, torch.Tensor)


def test_a_trial_ends_when_it_is_known_well_enough_whatever_others_are(task) -> None:
    rule = precise(task.problem.limits)
    steady, jittery = (1.5, *[1.0, 1.001] * 10), (1.5, *[0.5, 1.5] * 10)
    assert not rule(steady[:4], None) and rule(steady[:7], None) and rule(steady[:7], Incumbent(steps_per_s=1e9))
    assert not rule(jittery, None)


@pytest.mark.slow
def test_nothing_is_measured_twice(profiled) -> None:
    active, found = profiled
    assert found.trials == len({seen.candidate for seen in active._seen})
