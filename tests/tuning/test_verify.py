"""A verification finds a regression if a change is beyond noise and margin, and the study itself goes on unchanged."""

import dataclasses
import json
import re
import time

import numpy as np
import pytest

import oppa
from oppa import api, catalog
from oppa.errors import InputError, StudyError
from oppa.problem.objective import Objective
from oppa.problem.software import Software
from oppa.study import Study
from oppa.tuning.verification import Interval
from oppa.tuning.verify.changes import moved
from oppa.tuning.verify.finished import FinishedStudy
from oppa.tuning.verify.past import VERDICT, open_folder, past
from oppa.tuning.verify.rounds import run_verification
from oppa.tuning.verify.verdict import judge, verdict_on
from tests.tuning.conftest import trial_of

SIMULATED = catalog.find("runners", "simulated") / "jobs" / "bert.toml"
THEN, FEW = (10.0, 10.1, 9.9), (10.0,)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a finished study of simulated trials."""
    return oppa.tune(SIMULATED, study=tmp_path_factory.mktemp("studies") / "s", trials=3).study


@pytest.fixture
def verdict(candidates):
    """Judge the first candidate by its throughputs then and now, in steps per second; None is a failed trial."""
    configuration = candidates.configuration(0)

    def trial(rate):
        known = {"outcome": "completed"} if rate else {"outcome": "failed", "cause": "no\nplugin"}
        return trial_of(1, configuration, rate, **known)

    return lambda then, now: judge("winner", configuration, then=list(map(trial, then)), now=list(map(trial, now)), margin=0.05)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (THEN, "as_fast"),
        ((8.0, 8.1, 7.9), "slower"),
        ((12.0, 12.1, 11.9), "faster"),
        ((9.7, 9.71, 9.69), "unclear"),  # within the margin, but the interval reaches beyond it
        ((10.0, 5.0, 8.0), "unclear"),  # beyond the margin, but within noise
        ((None, *THEN), "as_fast"),  # one failure may be an accident
        ((None, None), "no_longer_runs"),
        ((None, 10.0, None), "no_longer_runs"),
        (FEW, "not_compared"),
        ((), "not_compared"),
    ],
)
def test_a_verdict_follows_from_the_repeats(verdict, now, expected) -> None:
    assert verdict(THEN, now).verdict == expected


def test_a_change_that_is_surely_within_the_margin_is_none(verdict) -> None:
    found = verdict((10.0, 10.01, 9.99), (9.7, 9.71, 9.69))
    assert found.verdict == "as_fast" and 0.95 < found.ratio.low < found.ratio.high < 1


@pytest.mark.parametrize(("noise", "rounds"), [(0.02, 3), (0.06, 3), (0.06, 10)])
def test_a_slowdown_of_a_tenth_is_hardly_ever_called_as_fast(verdict, noise, rounds) -> None:
    random = np.random.default_rng(0)
    runs = [np.split(np.exp(noise * random.standard_normal(3 + rounds)), [3]) for _ in range(200)]
    found = [verdict(then.tolist(), (0.9 * now).tolist()).verdict for then, now in runs]
    assert found.count("as_fast") <= 2  # the larger side of a 95% interval; 13% at 6% noise and three rounds by the value alone


def test_a_study_that_measured_its_winner_once_cannot_be_compared(verdict) -> None:
    found = verdict(FEW, THEN)
    assert found.verdict == "not_compared" and "the study has one repeat of it" in found.in_words(Objective())
    assert found.now.value == pytest.approx(10.0, rel=1e-3) and found.then is None


def test_words_have_the_size_of_the_change_and_its_interval(verdict) -> None:
    assert verdict(THEN, (8.0, 8.1, 7.9)).in_words(Objective()).startswith("slower by 20.0% [")
    assert verdict(THEN, (None, None)).in_words(Objective()) == "no longer runs: no plugin"
    lower = Objective(unit="ms", better="lower", is_throughput=False)
    assert verdict(THEN, (8.0, 8.1, 7.9)).in_words(lower).startswith("worse by 20.0% [")


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
def test_a_larger_margin_never_makes_a_regression(margin) -> None:
    ratios = [Interval(value=value, low=value - spread, high=value + spread) for value in (0.6, 0.9, 1.0, 1.2) for spread in (0.01, 0.3)]
    slower = [verdict_on(ratio, margin) == "slower" for ratio in ratios]
    assert all(before or not after for before, after in zip([verdict_on(ratio, 0.0) == "slower" for ratio in ratios], slower, strict=True))


@pytest.mark.slow
def test_a_study_is_verified_through_the_interface_and_keeps_what_it_holds(study) -> None:
    with Study(study) as opened:
        before, spent = opened.trials(), opened.committed_s()
    found = oppa.verify(study)
    assert found.status == "passed" and found.winner.ratio.low < 1 < found.winner.ratio.high
    assert [trial.configuration for trial in found.trials].count(found.winner.configuration) == 3
    with Study(study) as opened:
        assert (opened.trials(), opened.committed_s()) == (before, spent)
    (listed,) = past(study)[-1:]
    assert (listed.number, listed.status, listed.summary) == (found.number, "passed", found.summary)
    assert listed.values == json.loads(json.dumps(found.to_dict()))


@pytest.mark.slow
def test_each_round_has_one_trial_of_each_and_the_order_reverses(study) -> None:
    found = oppa.verify(study, rounds=4)
    order = [trial.configuration for trial in found.trials]
    assert order[0::4] == order[3::4] and order[1::4] == order[2::4] and len(set(order[:2])) == 2


@pytest.mark.slow
def test_a_limit_of_hours_holds_for_the_verification_alone(study) -> None:
    free = oppa.verify(study)
    half = free.spent.gpu_hours / 2
    found = oppa.verify(study, max_gpu_hours=half)
    assert found.spent.gpu_hours <= half and len(found.trials) < len(free.trials)
    assert found.summary.endswith(f"; the budget of {half:,g} GPU-hours is spent") and "budget" not in free.summary


def test_a_plan_counts_the_trials_that_its_limit_allows_and_refuses_less_than_a_round(study) -> None:
    whole = api.plan_verification(study)
    assert whole.affordable == whole.trials == 6
    hours = whole.to_dict()["gpu_hours"]
    assert 2 <= api.plan_verification(study, max_gpu_hours=hours / 2).affordable <= 3
    before = past(study)
    with pytest.raises(InputError, match=r"is too little: one round takes about .* GPU-hours") as caught:
        oppa.verify(study, max_gpu_hours=hours / 4)
    assert caught.value.hint.endswith("for 3 rounds")
    assert past(study) == before


def test_wrong_arguments_and_unfinished_studies_are_refused(study, tmp_path) -> None:
    wrongs = (
        ({"rounds": 2}, "`rounds = 2` is too small"),
        ({"rounds": 3.5}, "`rounds = 3.5` is no whole number"),
        ({"rounds": True}, "`rounds = True` is no whole number"),
        ({"margin": 2.0}, "`margin = 2` is not a share"),
    )
    for wrong, message in wrongs:
        with pytest.raises(InputError, match=message):
            api.plan_verification(study, **wrong)
    with pytest.raises(StudyError, match="is not a study folder"):
        oppa.verify(tmp_path)
    problem = FinishedStudy.read(study).problem
    Study.create(tmp_path / "new", problem.to_dict(), problem.fingerprint).close()
    with pytest.raises(InputError, match="has no completed trial"):
        oppa.verify(tmp_path / "new")
    (tmp_path / "new" / "table.csv").touch()
    with pytest.raises(InputError, match="holds a table"):
        oppa.verify(tmp_path / "new")


def test_more_steps_cost_more_and_must_fit_into_their_time_limit(study) -> None:
    usual = api.plan_verification(study)
    more = api.plan_verification(study, settings=["limits.q_max=3000", "limits.trial_time=1 d"])
    assert more.seconds > 10 * usual.seconds
    with pytest.raises(InputError, match=r"`q_max = 30000` steps of .* take .*, but `trial_time` is 2 min") as refusal:
        api.plan_verification(study, settings=["limits.q_max=30000", "limits.trial_time=120 s"])
    proposed = re.search(r"limits\.trial_time=\w+", refusal.value.hint)[0]
    assert api.plan_verification(study, settings=["limits.q_max=30000", proposed]).seconds > more.seconds


@pytest.mark.slow
def test_a_runner_up_is_measured_again_if_that_is_asked_for(study) -> None:
    assert "runner-up" not in api.plan_verification(study).finished.roles.values()
    plan = api.plan_verification(study, runner_up=True)
    assert {*plan.finished.roles.values()} == {"winner", "runner-up", "default"}
    found = run_verification(plan)
    assert found.status == "passed" and found.runner_up.role == "runner-up" and found.over_runner_up is not None
    swapped = dataclasses.replace(plan.finished.found, best=plan.finished.found.reference, runner_up=plan.finished.found.best)
    overtaken = run_verification(dataclasses.replace(plan, finished=dataclasses.replace(plan.finished, found=swapped)))
    assert overtaken.regressions[0].startswith("the runner-up is now faster than the winner by")


def test_a_verification_leaves_out_the_first_steps(study) -> None:
    wrong = ["limits.settle=300", "limits.q_max=301"]
    with pytest.raises(InputError, match="after `settle = 300`"):
        api.plan_verification(study, settings=wrong)
    planned = api.plan_verification(study, settings=["limits.settle=300", "limits.q_max=500", "limits.trial_time=1 d"])
    assert planned.setup.problem.limits.settle == 300


@pytest.fixture
def opened(tmp_path, study):
    """Begin a verification in an empty folder, and return its number; it stays unfinished."""
    problem = FinishedStudy.read(study).problem

    def begin(software=None, age_s=0.0):
        asked = problem if software is None else type(problem).from_dict({**problem.to_dict(), "software": software.to_dict()})
        number, folder = open_folder(tmp_path, asked)
        Study.create(folder, asked.to_dict(), asked.fingerprint, clock=lambda: time.time() - age_s).close()
        return number

    return begin


def test_an_unfinished_verification_goes_on_with_the_same_software_alone(opened, tmp_path) -> None:
    assert [opened(), opened()] == [1, 1]
    changed = Software(driver="580.65.06")
    assert [opened(changed), opened(changed), opened()] == [2, 2, 3]
    (tmp_path / "verifications" / "003" / VERDICT).write_text("not JSON")
    assert opened() == 4 and [each.status for each in past(tmp_path)] == ["unfinished"] * 4


def test_one_of_yesterday_does_not_go_on(opened) -> None:
    assert [opened(age_s=25 * 3600.0), opened()] == [1, 2]


def test_moved_trials_name_their_nodes(study, candidates) -> None:
    finished = FinishedStudy.read(study)
    here = [trial_of(1, candidates.configuration(0), 1.0, hosts=("n2", "n1"))]
    assert not moved(finished, here)  # simulated trials of the study have none
    many = tuple(f"n{number}" for number in range(8))
    ran = {each: (trial_of(1, each, 1.0, hosts=many),) for each in finished.contenders}
    (change,) = moved(dataclasses.replace(finished, found=dataclasses.replace(finished.found, repeats=ran)), here)
    assert str(change) == "nodes n0 ... n7 (8 nodes) -> n1, n2"
