"""No study spends more than `max_gpu_hours`, and verification has its share."""

import dataclasses
import math
from functools import partial

import pytest

from oppa.errors import StudyError
from oppa.problem.command import LaunchCommand, StepFormat
from oppa.problem.job import load_job
from oppa.problem.training import Limits
from oppa.simulator.executor import SimulatedExecutor
from oppa.simulator.simulator import Simulator
from oppa.study import Prediction, Study
from oppa.study.records import BASELINE, SEARCH, VERIFICATION
from oppa.trials.trial import TrialResult
from oppa.tuning.comparison import BASELINES
from oppa.tuning.designers import make_designer
from oppa.tuning.device_budget import DeviceBudget, complete_s, require_one_start, startup_s, worthwhile_s
from oppa.tuning.nothing_feasible import nothing_feasible
from oppa.tuning.search import search
from oppa.tuning.session import SilentCallback
from oppa.tuning.spending import gpu_hours, spending, starting_s, unit
from oppa.tuning.stopping import never
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.winner import find_winner, repeat_s, search_and_verify
from tests.tuning.conftest import trial_of

JOB = "runners/simulated/jobs/llama-3.2-1b.toml"


@pytest.fixture(scope="module")
def job():
    from oppa import catalog

    return load_job(catalog.root() / JOB, settings=["limits.q_max=12", "space.parameters.recompute=none"])


@pytest.fixture(scope="module")
def smaller():
    """The same job with fewer candidates, over which a designer thinks for seconds."""
    from oppa import catalog

    buckets = ["space.parameters.dp_bucket_mb=25", "space.parameters.zero_bucket_mb=24"]
    return load_job(catalog.root() / JOB, settings=["limits.q_max=12", "space.parameters.recompute=none", *buckets])


@pytest.fixture(scope="module")
def bert():
    from oppa import catalog

    buckets = ["space.parameters.dp_bucket_mb=25", "space.parameters.zero_bucket_mb=24"]
    return load_job(catalog.root() / "runners/simulated/jobs/bert.toml", settings=buckets)


class Beginning:
    """Lets the first trials fail after some seconds, or at their limit; the others run."""

    def __init__(self, seconds, run_trial) -> None:
        self._run_trial, self._seconds = run_trial, iter(seconds)

    def __call__(self, folder, spec, *, limits, **watching):
        result = self._run_trial(folder, spec, limits=limits, **watching)
        fails_s = next(self._seconds, None)
        return result if fails_s is None else TrialResult(outcome="failed", seconds=min(fails_s, limits.trial_time_s))


@pytest.fixture
def spend(job, tmp_path):
    """Search and verify on the simulated cluster, with a limit; returns the spending, the trials, and why the search ended."""

    def spend(hours, *, designer="random", of=job, wrapped=lambda run_trial: run_trial, **limits):
        problem = dataclasses.replace(of, limits=dataclasses.replace(of.limits, max_gpu_hours=hours, wall_time_s=None, **limits))
        candidates = problem.candidates()
        with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as study:
            study.open_session({})
            run_trial = wrapped(SimulatedExecutor(Simulator.of(problem), seed=0))
            executor = TrialExecutor(study, problem, run_trial, SilentCallback(), simulated=True)
            made = make_designer(designer, problem, candidates, seed=0)
            ended, found = search_and_verify(executor, candidates, made, never(problem.limits))
            return spending(study, problem), study.trials(), ended, found

    return spend


@pytest.mark.parametrize("hours", [0.3, 1.0, 3.0, 5.0])
def test_a_limit_is_never_passed_and_is_nearly_used(spend, hours) -> None:
    spent, trials, ended, _ = spend(hours)
    assert spent.gpu_hours <= hours * (1 + 1e-9)
    assert spent.gpu_hours >= 0.5 * hours or hours < 1
    assert ended == f"the budget of {hours:g} GPU-hours is spent"
    assert sum(trial.seconds for trial in trials) == pytest.approx(spent.seconds)


@pytest.mark.slow
def test_verification_has_its_share(spend, smaller, job) -> None:
    _, trials, _, found = spend(20.0, designer="oppa", of=smaller, trials=12)
    assert found.speed_up is not None and found.missing(job.limits.repeats) is None
    assert sum(trial.purpose == VERIFICATION for trial in trials) == len(found.repeats) * job.limits.repeats


@pytest.mark.slow
def test_without_predictions_verification_has_at_least_two_rounds(spend) -> None:
    assert spend(16.0)[3].speed_up is not None


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0.6, 2.0])
def test_the_same_search_again_runs_no_further_trial(spend, bert, hours) -> None:
    first, before, ended, found = spend(hours, of=bert)
    again, after, *_ = spend(hours, of=bert)
    assert again == first and len(after) == len(before)
    assert first.gpu_hours > 0.9 * hours and ended == f"the budget of {hours:g} GPU-hours is spent"
    assert found.missing(bert.limits.repeats) is None or hours < 1


@pytest.mark.slow
def test_a_first_trial_that_hangs_leaves_the_rest_of_the_budget_to_the_search(spend, bert) -> None:
    spent, trials, _, found = spend(2.0, of=bert, wrapped=partial(Beginning, [math.inf]))
    assert trials[0].outcome == "interrupted" and gpu_hours(bert.cluster, trials[0].seconds) == pytest.approx(0.25 * 2.0)
    assert len({trial.configuration for trial in trials if trial.purpose == SEARCH and trial.counts}) > 3
    assert found.speed_up.ratio.low > 1 and 1.5 < spent.gpu_hours <= 2.0


def test_a_reference_alone_is_not_repeated_while_the_budget_allows_a_trial(spend, bert) -> None:
    _, trials, _, found = spend(0.6, of=bert, wrapped=partial(Beginning, [math.inf]))
    assert [trial.purpose for trial in trials[:4]] == [SEARCH, BASELINE, SEARCH, VERIFICATION]
    assert len(found.repeats) == 2


@pytest.mark.slow
def test_the_search_goes_on_if_its_share_and_all_references_failed(spend, bert) -> None:
    _, trials, _, found = spend(2.0, of=bert, wrapped=partial(Beginning, [45.0] * 12))
    assert sum(trial.purpose == BASELINE for trial in trials) == BASELINES
    assert found is not None and found.best.purpose == SEARCH


def test_a_resumed_study_counts_what_was_spent_before(spend) -> None:
    first, before, *_ = spend(1.0)
    again, after, *_ = spend(1.0)
    assert len(after) == len(before) and again == first
    more, trials, *_ = spend(2.5)
    assert first.gpu_hours < more.gpu_hours <= 2.5 and len(trials) > len(before)


def test_the_running_trial_is_ended_at_the_limit_and_teaches_nothing(spend) -> None:
    spent, trials, *_ = spend(0.16, q_min=2)
    cut = [trial for trial in trials if trial.outcome == "interrupted"]
    assert [trial.cause for trial in cut] == ["the budget of 0.16 GPU-hours is spent"] * len(cut)
    assert spent.gpu_hours <= 0.16 and not any(trial.outcome == "timed_out" for trial in trials)


def test_start_up_and_steps_add_up(spend) -> None:
    spent, trials, *_ = spend(1.0, trials=2)
    assert spent.startup_s >= sum(trial.setup_s or trial.seconds for trial in trials)
    assert spent.seconds == pytest.approx(spent.startup_s + spent.steps_s) and spent.idle_s == 0
    assert spent.to_dict()["startup_gpu_hours"] + spent.to_dict()["steps_gpu_hours"] == pytest.approx(spent.gpu_hours)


@pytest.mark.parametrize(
    ("times_s", "extra_s"),
    [((40.0, 1.0, 1.0, 1.0), 39.0), ((20.0, 30.0, *[1.0] * 10), 48.0), ((1.0,) * 8, 0.0), ((5.0,), 0.0), ((0.5, 1.0, 1.0), 0.0)],
    ids=["compiles", "compiles twice", "steady", "one step", "faster"],
)
def test_what_a_program_compiles_in_its_first_steps_is_start_up(spend, times_s, extra_s) -> None:
    *_, trials, _, _ = spend(1.0, trials=1)
    trial = dataclasses.replace(trials[0], setup_s=3.0, step_times_s=times_s, seconds=3.0 + sum(times_s) + 1.0)
    assert starting_s(trial) == pytest.approx(3.0 + extra_s)
    assert startup_s([trial]) == starting_s(trial)
    assert starting_s(dataclasses.replace(trial, setup_s=None)) == trial.seconds


def test_the_numbers_of_an_objective_are_no_seconds_of_the_budget(job) -> None:
    """Thirty steps of a second each print values near 300; three such trials take 60 s each."""
    objective = StepFormat(pattern="(?P<value>.*)", better="lower")
    problem = dataclasses.replace(job, command=LaunchCommand(argv=("train",), steps=objective), limits=Limits(q_max=30))
    trial = trial_of(0, job.candidates().configuration(0), 1 / 300, seconds=60.0, setup_s=30.0, step_times_s=(300.0,) * 30)
    prediction = Prediction(steps_per_s=1 / 300, log_stddev=0.1)
    assert worthwhile_s(prediction, [trial] * 3, problem) == worthwhile_s(None, [trial] * 3, problem) == pytest.approx(30.0)
    assert worthwhile_s(prediction, [], problem) == 0.0 and complete_s(prediction, [trial], problem) is None
    assert repeat_s(trial, problem) == pytest.approx(60.0)


def test_a_trial_is_begun_for_the_steps_that_complete_trials_take_and_for_no_more_than_its_limit(job) -> None:
    problem, usual = dataclasses.replace(job, limits=Limits(q_max=30, trial_time_s=100.0)), job.candidates().configuration(0)
    known = {"setup_s": 20.0, "seconds": 60.0}
    early = [trial_of(number, usual, 0.5, step_times_s=(2.0,) * steps, **known) for number, steps in enumerate((7, 9, 22))]
    whole = trial_of(7, usual, 0.5, step_times_s=(2.0,) * 30, purpose=VERIFICATION, **known)
    trials, slow = [*early, whole, whole], Prediction(steps_per_s=0.01, log_stddev=0.1)
    assert worthwhile_s(Prediction(steps_per_s=1.0, log_stddev=0.1), trials, problem) == 9.0
    assert worthwhile_s(None, trials, problem) == 18.0
    assert worthwhile_s(slow, trials, problem) == 80.0
    assert worthwhile_s(Prediction(steps_per_s=1.0, log_stddev=0.1), [], problem) == 6.0


def test_without_a_limit_nothing_is_reserved(spend) -> None:
    _, trials, ended, _ = spend(None, trials=3)
    assert ended == "the budget of 3 trials is spent" and sum(trial.purpose == SEARCH for trial in trials) == 3


def test_a_limit_below_one_start_is_refused_with_what_it_lasts(job) -> None:
    tiny = dataclasses.replace(job, limits=dataclasses.replace(job.limits, max_gpu_hours=0.001))
    with pytest.raises(Exception, match=r"`max_gpu_hours = 0.001` lasts .* on \d+ devices") as caught:
        require_one_start(tiny)
    assert "20 trials of one minute take" in caught.value.hint


def test_devices_are_named_by_their_kind(job, problem) -> None:
    assert (unit(job.cluster), unit(problem.cluster)) == ("GPU-hours", "device-hours")


def test_tuners_of_one_study_share_its_budget(job, tmp_path) -> None:
    problem = dataclasses.replace(job, limits=dataclasses.replace(job.limits, max_gpu_hours=1.0, wall_time_s=None))
    with (
        Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as ours,
        Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as theirs,
    ):
        request = DeviceBudget(problem=problem, study=ours, ending_s=0.0).request((), most_s=1e6)
        candidates = problem.candidates()
        lease = theirs.claim(candidates.configuration(0), budget=request)
        assert lease.granted_s == request.total_s == 3600 / problem.cluster.devices
        assert ours.claim(candidates.configuration(1), budget=request) is None  # theirs holds all of it while it runs
        theirs.interrupt(lease, "asked to")
        assert ours.claim(candidates.configuration(1), budget=request).granted_s == pytest.approx(request.total_s, abs=1.0)


def test_a_tuner_whose_hosts_come_after_the_budget_was_committed_releases_them(job, tmp_path) -> None:
    problem = dataclasses.replace(job, limits=dataclasses.replace(job.limits, max_gpu_hours=1.0, wall_time_s=None))
    with (
        Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as ours,
        Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as theirs,
    ):
        ours.open_session({})
        theirs.open_session({})
        budget, candidates = DeviceBudget(problem=problem, study=ours, ending_s=0.0), problem.candidates()
        with theirs.holding():
            assert theirs.claim(candidates.configuration(0), budget=budget.request((), most_s=1e6)).granted_s > 200
            assert not budget.must_release()
            with ours.holding():
                assert budget.must_release()
                executor = TrialExecutor(ours, problem, SimulatedExecutor(Simulator.of(problem), seed=0), SilentCallback(), simulated=True)
                designer = make_designer("random", problem, candidates, seed=0)
                assert search(executor, candidates, designer, never(problem.limits)) == "the budget of 1 GPU-hours is spent"
                assert find_winner(executor, candidates, designer) is None


@pytest.mark.parametrize(("hours", "cause"), [(None, "the budget is spent"), (1e4, "interrupted by the user")])
def test_a_study_that_the_user_interrupted_has_not_spent_its_budget(job, tmp_path, hours, cause) -> None:
    problem = dataclasses.replace(job, limits=dataclasses.replace(job.limits, max_gpu_hours=hours))
    with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as study:
        if hours is not None:
            study.interrupt(study.claim(problem.candidates().configuration(0)), cause)
        assert cause in nothing_feasible(study, problem).message and (
            "budget" in cause or "budget" not in str(nothing_feasible(study, problem))
        )


@pytest.mark.parametrize(
    "damage", ['{"trials": "many"}', '{"max_gpu_hours": -1.0}', '{"max_gpu_hours": NaN}', '{"hours": 1}', "[]", '{"q_max": 7}']
)
def test_damaged_limits_of_a_study_are_named(job, tmp_path, damage) -> None:
    with Study.create(tmp_path / "study", job.to_dict(), job.fingerprint) as study:
        study.store_limits(dataclasses.replace(job.limits, max_gpu_hours=3.0))
    with Study(tmp_path / "study") as study:
        assert study.problem.limits.max_gpu_hours == 3.0
        study._connection.execute("UPDATE meta SET value = ? WHERE key = 'limits'", (damage,))
        if damage != '{"q_max": 7}':  # older studies have no checksum
            study._connection.execute("DELETE FROM meta WHERE key = 'limits_sha256'")
    with Study(tmp_path / "study") as study, pytest.raises(StudyError, match=r"the problem of the study in .* is damaged"):
        _ = study.problem
