"""The winner is the configuration that its repeats prove, and no other."""

import dataclasses
import json

import pytest

from oppa.study import Study, Trial
from oppa.study.records import BASELINE
from oppa.tuning.comparison import BASELINES, compare_contenders, pairing_of, untried_reference
from oppa.tuning.result import to_json
from oppa.tuning.verification import interval
from tests.tuning.conftest import trial_of

REPEATS = 3


class Record:
    """Holds a study's trials, written by hand: candidates by their index, throughput in steps per second."""

    def __init__(self, candidates) -> None:
        self.candidates = candidates
        self.trials: list[Trial] = []

    def search(self, index, steps_per_s, outcome="completed", **values):
        configuration = self.candidates.configuration(index)
        self.trials.append(trial_of(len(self.trials) + 1, configuration, steps_per_s, outcome, **values))
        return self.trials[-1]

    def baseline(self, index, steps_per_s, outcome="completed"):
        return self.search(index, steps_per_s, outcome, purpose=BASELINE)

    def repeat(self, rates, outcome="completed"):
        """Repeats of contenders, each with its throughputs; another tuner may name them in another order."""
        pairing = pairing_of({self.candidates.configuration(index): None for index in reversed(rates)})
        for index, repeats in rates.items():
            for rate in repeats:
                self.search(index, rate, outcome, purpose="verification", pairing=pairing)

    def result(self):
        return compare_contenders(self.trials, self.candidates, REPEATS)

    def next_default(self):
        return untried_reference(self.trials, self.candidates)


@pytest.fixture
def record(candidates):
    return Record(candidates)


@pytest.fixture
def defaults(candidates):
    """The candidates that stand for "not tuned", in the order in which they are tried."""
    return list(map(int, candidates.default_order()))


@pytest.fixture
def default(defaults):
    return defaults[0]


@pytest.fixture
def others(candidates, defaults):
    """Three candidates that are no defaults."""
    return [index for index in range(len(candidates)) if index not in defaults][:3]


def test_nothing_feasible_finds_nothing(record, default, others) -> None:
    assert record.result() is None
    record.search(default, None, "out_of_memory")
    record.search(others[0], 3.0, "terminated_early")
    assert record.result() is None


def test_the_default_and_the_two_fastest_take_turns(record, default, others, candidates) -> None:
    for index, rate in ((default, 1.0), (others[0], 2.0), (others[1], 1.5), (others[2], 1.2)):
        record.search(index, rate)
    contenders, order = (default, others[0], others[1]), []
    for _ in range(3 * REPEATS):
        order.append(candidates.index_of(record.result().missing(REPEATS)))
        record.repeat({index: [2.0] * (index == order[-1]) for index in contenders})
    assert sorted(order[:3]) == sorted(order[3:6]) == sorted(contenders)
    assert order[3:6] == order[:3][::-1] and order[6:] == order[:3]  # reversed every round, so that a drift favours no one
    assert record.result().missing(REPEATS) is None


def test_the_winner_is_the_fastest_in_the_repeats_whatever_the_search_saw(record, default, others) -> None:
    usual, lucky, steady = record.search(default, 1.0), record.search(others[0], 3.0), record.search(others[1], 2.0)
    assert record.result().best == lucky
    record.repeat({default: [1.0, 1.0, 1.1], others[0]: [1.4, 1.5, 1.6], others[1]: [2.0, 2.0, 2.1]})
    result = record.result()
    assert (result.best, result.runner_up, result.reference) == (steady, lucky, usual)
    assert result.speed_up.ratio.value == pytest.approx((2.0 * 2.0 * 2.1 / 1.1) ** (1 / 3))
    assert result.margin.ratio.value == pytest.approx((2.0 * 2.0 * 2.1 / (1.4 * 1.5 * 1.6)) ** (1 / 3))
    assert result.margin.winner == result.speed_up.winner and not result.margin.tied


def test_a_baseline_stands_where_the_default_would(record, default, others, candidates) -> None:
    usual, baseline = record.search(default, 1.0), record.search(others[2], 1.2)
    record.search(others[0], 2.0)
    record.search(others[1], 1.5)
    result = compare_contenders(record.trials, candidates, REPEATS, baseline.configuration)
    assert (result.reference, result.reference_kind, result.failure) == (baseline, "baseline", None)
    assert usual.configuration not in result.repeats
    assert untried_reference(record.trials, candidates, baseline.configuration) is None
    record.repeat({others[0]: [2.0] * 3, others[1]: [1.5] * 3, others[2]: [1.0] * 3})
    assert compare_contenders(record.trials, candidates, REPEATS, baseline.configuration).speed_up.ratio.value == pytest.approx(2.0)


def test_a_baseline_that_was_never_tried_is_looked_for_first(record, others, candidates) -> None:
    record.search(others[0], 2.0)
    assert untried_reference(record.trials, candidates, candidates.configuration(others[1])) == others[1]


def test_defaults_that_are_predicted_not_to_fit_are_tried_after_all_others(record, defaults, candidates) -> None:
    may_fit = defaults[2:4].__contains__
    tried = []
    while (candidate := untried_reference(record.trials, candidates, may_fit=may_fit)) is not None:
        tried.append(candidate)
        record.baseline(candidate, None, "out_of_memory")
    assert tried == [*defaults[2:4], *(each for each in defaults if each not in defaults[2:4])][:BASELINES]


def test_a_baseline_is_tried_though_it_is_predicted_not_to_fit(record, others, candidates) -> None:
    baseline = candidates.configuration(others[1])
    assert untried_reference(record.trials, candidates, baseline, may_fit=lambda _: False) == others[1]


def test_the_default_may_win(record, default, others) -> None:
    usual = record.search(default, 1.0)
    second = record.search(others[0], 3.0)
    record.repeat({default: [1.0, 1.0, 1.1], others[0]: [0.8, 0.9, 0.8]})
    result = record.result()
    assert (result.best, result.reference, result.runner_up, result.speed_up) == (usual, usual, second, None)
    assert result.margin.ratio.value > 1.1


def test_one_alone_has_no_one_to_compare_with(record, default, candidates) -> None:
    usual = record.search(default, 1.0)
    record.repeat({default: [1.0] * 3})
    result = record.result()
    assert (result.best, result.runner_up, result.speed_up, result.margin) == (usual, None, None, None)
    assert result.missing(REPEATS) is None


def test_one_alone_is_repeated_as_often_as_contenders_are(record, default, candidates) -> None:
    """A later verification compares with these repeats, which is inconclusive with two of them."""
    record.search(default, 1.0)
    record.repeat({default: [1.0, 1.1]})
    assert record.result().missing(REPEATS) == candidates.configuration(default)
    record.repeat({default: [1.05]})
    alone = record.result()
    assert alone.missing(REPEATS) is None and alone.missing(10) == candidates.configuration(default)
    assert interval([trial.steps_per_s for trial in alone.repeats_of(alone.best)]).low > 0


def test_one_that_runs_out_of_memory_in_a_repeat_is_dropped(record, default, others, candidates) -> None:
    record.search(default, 1.0)
    record.search(others[0], 3.0)
    second, third = record.search(others[1], 2.0), record.search(others[2], 1.5)
    record.repeat({default: [], others[0]: [None], others[1]: []}, outcome="out_of_memory")
    result = record.result()
    assert (result.best, result.runner_up) == (second, third)
    assert candidates.configuration(others[0]) not in result.repeats


def test_one_stray_failure_is_repeated_and_two_are_not(record, default, others, candidates) -> None:
    record.search(default, 1.0)
    first, contenders = record.search(others[0], 3.0), {default: [], others[0]: [None]}
    record.repeat(contenders, outcome="failed")
    record.repeat({default: [1.0], others[0]: []})
    assert record.result().best == first and record.result().missing(REPEATS) == first.configuration
    record.repeat(contenders, outcome="failed")
    assert record.result().best.configuration == candidates.configuration(default)


def test_when_all_are_dropped_nothing_is_found(record, default) -> None:
    record.search(default, 1.0)
    record.repeat({default: [None]}, outcome="out_of_memory")
    assert record.result() is None


def test_repeats_among_other_contenders_do_not_count(record, default, others) -> None:
    record.search(default, 1.0)
    record.search(others[0], 2.0)
    record.repeat({default: [1.0] * 3, others[0]: [2.0] * 3})
    assert record.result().speed_up is not None
    faster = record.search(others[1], 4.0)
    result = record.result()
    assert result.best == faster and result.speed_up is None and result.missing(REPEATS) is not None


def test_without_a_feasible_default_the_winner_stands_alone(record, default, others) -> None:
    record.search(default, None, "out_of_memory")
    best = record.search(others[0], 2.0)
    result = record.result()
    assert result.reference is None and result.speed_up is None and result.missing(REPEATS) == best.configuration


def test_a_default_that_was_stopped_early_is_one(record, default, others) -> None:
    usual = record.search(default, 0.5, "terminated_early")
    record.search(others[0], 2.0)
    assert record.result().reference == usual and record.next_default() is None
    record.repeat({default: [0.5] * 3, others[0]: [2.0] * 3})
    assert record.result().speed_up.ratio.value == pytest.approx(4.0)


def test_interrupted_trials_say_nothing(record, default, others) -> None:
    record.search(default, 1.0)
    record.trials[0] = dataclasses.replace(record.trials[0], outcome="interrupted")
    assert record.result() is None and record.next_default() == default


def test_the_default_that_is_looked_for_is_the_first_that_was_not_tried(record, defaults) -> None:
    for tried in range(4):
        assert record.next_default() == defaults[tried]
        (record.search if tried % 2 else record.baseline)(defaults[tried], None, "out_of_memory")
    record.baseline(defaults[4], 1.0)
    assert record.next_default() is None
    assert record.result().reference.configuration == record.trials[4].configuration


@pytest.mark.parametrize("outcome", ["out_of_memory", "failed", "timed_out"])
def test_after_some_defaults_that_do_not_fit_it_gives_up(outcome, record, candidates) -> None:
    everything = candidates.default_order()
    for tried in range(BASELINES):
        assert record.next_default() == everything[tried]
        record.baseline(int(everything[tried]), None, outcome)
    assert record.next_default() is None


def test_a_default_that_fails_when_run_again_makes_room_for_the_next(record, defaults, others) -> None:
    record.search(others[0], 2.0)
    record.baseline(defaults[0], 1.0)
    assert record.next_default() is None
    record.repeat({defaults[0]: [None], others[0]: []}, "out_of_memory")
    assert record.next_default() == defaults[1]
    usual = record.baseline(defaults[1], 1.5)
    assert record.next_default() is None
    assert record.result().reference == usual


def test_search_trials_of_defaults_are_no_spent_looks(record, defaults) -> None:
    for index in defaults[: BASELINES + 1]:
        record.search(index, None, "out_of_memory")
    assert record.next_default() == (defaults[BASELINES + 1] if len(defaults) > BASELINES + 1 else None)


def test_what_was_tried_twice_contends_once_with_its_last_trial(record, default, others) -> None:
    record.baseline(default, 5.0)
    again = record.search(default, 4.0)
    second = record.search(others[0], 2.0)
    result = record.result()
    assert (result.best, result.runner_up) == (again, second)


def test_what_was_searched_twice_ranks_by_its_mean(record, default, others) -> None:
    record.search(others[0], 4.0)
    second = record.search(others[1], 3.0)
    again = record.search(others[0], 2.0)  # the mean is 2.83
    third = record.search(others[2], 1.0)
    result = record.result()
    assert (result.best, result.runner_up) == (second, again) and third.configuration not in result.repeats
    record.search(others[0], 4.0, "terminated_early")
    assert (record.result().best, record.result().runner_up) == (again, second)


def test_what_was_ended_early_may_be_the_runner_up_and_win(record, default, others) -> None:
    usual, lucky = record.search(default, 1.0), record.search(others[0], 3.0)
    slow, ended = record.search(others[1], 2.0), record.search(others[2], 2.8, "terminated_early")
    assert (record.result().best, record.result().runner_up) == (lucky, ended)
    record.repeat({default: [1.0] * 3, others[0]: [2.6] * 3, others[2]: [2.9] * 3})
    result = record.result()
    assert (result.best, result.runner_up, result.reference) == (ended, lucky, usual)
    assert slow.configuration not in result.repeats


def test_what_was_compared_before_stays_the_runner_up(record, default, others) -> None:
    record.search(default, 1.0)
    record.search(others[0], 3.0)
    second = record.search(others[1], 2.0)
    record.repeat({default: [1.0] * 3, others[0]: [3.0] * 3, others[1]: [2.0] * 3})
    record.search(others[2], 2.5, "terminated_early")
    assert record.result().runner_up == second and record.result().missing(REPEATS) is None


def test_what_runs_out_of_memory_when_it_is_searched_again_is_dropped(record, others) -> None:
    record.search(others[0], 4.0)
    second = record.search(others[1], 3.0)
    record.search(others[0], None, "out_of_memory")
    assert record.result().best == second and record.result().runner_up is None


def test_throughput_in_the_search_is_the_mean_of_all_its_trials(record, default, others) -> None:
    record.baseline(default, 1.0)
    for rate in (2.0, 1.0, 4.0):
        record.search(others[0], rate)
    result = record.result()
    assert result.contender(result.best).steps_per_s_search == pytest.approx(2.0)
    record.search(others[0], 2.0, "terminated_early")
    record.repeat({default: [1.0], others[0]: [8.0]})
    again = record.result()
    assert again.contender(again.best).steps_per_s_search == pytest.approx(2.0)
    assert again.contender(again.reference).steps_per_s_search == 1.0


def test_the_json_has_what_was_found(record, default, others, tmp_path, problem) -> None:
    record.baseline(default, 1.0)
    for index, rate in ((others[0], 2.0), (others[1], 1.5)):
        record.search(index, rate)
    record.repeat({default: [1.0, 1.01, 0.99], others[0]: [2.0, 2.01, 1.99], others[1]: [1.5, 1.51, 1.49]})
    with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as study:
        result = json.loads(json.dumps(to_json(study, record.result(), "the budget is spent")))
        nothing = to_json(study, None, None)
    assert result["best"]["steps_per_s"] == pytest.approx(2.0, rel=1e-3) and result["best"]["steps_per_s_search"] == 2.0
    assert result["gain"] == pytest.approx(2.0, rel=1e-3) and result["lead"] == pytest.approx(4 / 3, rel=1e-3)
    assert result["gain_interval"][0] < result["gain"] < result["gain_interval"][1] and result["tied"] is False
    assert result.keys() == nothing.keys() and nothing["best"] is None
