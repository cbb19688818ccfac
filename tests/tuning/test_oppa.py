"""The designer `oppa`: starts from the cost model, respects what ran out of memory, and learns the same in any portions."""

import dataclasses
import math

import pytest
import torch

from oppa.problem.training import SearchOptions
from oppa.study import Prediction
from oppa.tuning.acquisition import bound
from oppa.tuning.designers.choice import ODD_MEMORY, probability_fits, value_of_new
from oppa.tuning.designers.oppa import FAILURES_IN_A_ROW, TOO_LARGE, Oppa
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.trial_length import TrialLength
from tests.sampling import nightly
from tests.tuning.conftest import STEPS, failed, measured

ALL = torch.arange(32)
MIB = 2**20


@pytest.fixture
def designer(problem, candidates) -> Oppa:
    return Oppa(problem, candidates, seed=0)


def needs_at_least_as_much(candidates, one: int, other: int) -> bool:
    """Compare the facts alone: the same placement and ZeRO stage, and micro-batches as large."""
    a, b = candidates.configuration(one), candidates.configuration(other)
    return dataclasses.replace(a, micro_batch=b.micro_batch) == b and a.micro_batch >= b.micro_batch


@pytest.mark.parametrize("limits", [("100 MiB", "100 MiB"), ("100 MiB", "42 MiB")])
def test_the_first_has_the_largest_expected_throughput(make_problem, limits) -> None:
    problem = make_problem(limits)
    designer = Oppa(problem, problem.candidates(), seed=0)
    rate, slack = designer.log_rate.of_candidates(ALL).mean, designer.log_slack.of_candidates(ALL)
    fits = torch.special.ndtr(-slack.mean / slack.stddev)
    expected, first = rate.exp() * fits, designer.suggest(set())
    assert expected[first] == pytest.approx(float(expected.max()))
    assert fits[first] > 0.5


def test_a_candidate_that_surely_fits_goes_before_a_faster_one_that_may_not(designer) -> None:
    rate, slack = designer.log_rate.at(ALL).mean, designer.log_slack.at(ALL)
    fits, first = torch.special.ndtr(-slack.mean / slack.stddev), designer.most_promising(ALL)
    faster = rate > rate[first]
    assert faster.any() and (fits[faster] < fits[first]).all()


def test_where_nothing_is_predicted_to_fit_the_first_is_what_needs_least(make_problem) -> None:
    problem = make_problem(("100 MiB", "1 MiB"))
    designer = Oppa(problem, problem.candidates(), seed=0)
    slack = designer.log_slack.at(ALL).mean
    assert slack.min() > 0 and designer.suggest(set()) == int(slack.argmin())


def test_what_looks_too_large_is_tried_until_nothing_is_left(make_problem) -> None:
    problem = make_problem(("100 MiB", "1 MiB"))
    designer, tried = Oppa(problem, problem.candidates(), seed=0), set()
    while (candidate := designer.suggest(tried)) is not None:
        tried.add(candidate)
        designer.update([failed(candidate)])
        assert len(tried) <= 32
    assert len(tried) == 32


def test_what_needs_as_much_as_one_that_ran_out_of_memory_is_never_tried(designer, candidates) -> None:
    tried, over = set(), []
    while (candidate := designer.suggest(tried)) is not None:
        assert not any(needs_at_least_as_much(candidates, candidate, other) for other in over)
        tried.add(candidate)
        over.append(candidate)
        designer.update([failed(candidate, "out_of_memory")])
    assert 0 < len(tried) < 32


def test_what_needs_less_of_one_part_may_still_be_tried(designer, candidates) -> None:
    largest = next(index for index in range(32) if candidates.configuration(index).id == "dp4_tp1_pp1_z0_mbs4")
    sharded = next(index for index in range(32) if candidates.configuration(index).id == "dp4_tp1_pp1_z1_mbs4")
    designer.update([failed(largest, "out_of_memory")])
    assert designer.suggest(set(range(32)) - {sharded}) == sharded
    assert designer.suggest(set(range(32)) - {largest}) is None


@pytest.mark.parametrize("memory_bytes", [None, 10 * 2**20])
@pytest.mark.parametrize("known", [(), (3, 20)])
def test_a_trial_that_timed_out_changes_no_belief(memory_bytes, known, designer, landscape) -> None:
    if known:
        designer.update([landscape.observe(index) for index in known])
    before = [process.at(ALL) for process in (designer.log_rate, designer.log_slack)]
    designer.update([failed(5, "timed_out", memory_bytes=memory_bytes)])
    for process, belief in zip((designer.log_rate, designer.log_slack), before, strict=True):
        torch.testing.assert_close((process.at(ALL).mean, process.at(ALL).stddev), (belief.mean, belief.stddev), rtol=0, atol=0)
    assert designer.suggest({5, *known}) is not None


def test_a_failure_of_an_unknown_cause_changes_the_belief_of_memory_alone(designer) -> None:
    before = [process.at(ALL) for process in (designer.log_rate, designer.log_slack)]
    designer.update([failed(5, memory_bytes=1)])
    rate, slack = (process.at(ALL) for process in (designer.log_rate, designer.log_slack))
    torch.testing.assert_close((rate.mean, rate.stddev), (before[0].mean, before[0].stddev), rtol=0, atol=0)
    assert slack.mean[5] > before[1].mean[5] and designer.suggest({5}) is not None


def test_where_running_out_of_memory_is_recognised_another_failure_changes_no_belief(designer) -> None:
    designer.update([failed(3, "out_of_memory")])
    before = designer.log_slack.at(ALL)
    designer.update([failed(5)])
    torch.testing.assert_close(designer.log_slack.at(ALL).mean, before.mean, rtol=0, atol=0)


@pytest.mark.slow
def test_before_each_trial_it_says_what_it_expects_of_throughput_and_memory(designer, make_planted) -> None:
    planted, tried, distances = make_planted(0), set(), []
    for _ in range(8):
        candidate = designer.suggest(tried)
        prediction = designer.predict(candidate)
        seen = dataclasses.replace(planted.observe(candidate), prediction=prediction)
        assert prediction.steps_per_s > 0 and prediction.log_stddev > 0
        assert prediction.memory_bytes > 0 and prediction.memory_log_stddev > 0
        distances.append(0.0 if seen.memory_bytes is None else abs(seen.memory_bytes / prediction.memory_bytes - 1))
        tried.add(candidate)
        designer.update([seen])
    assert distances[-1] < 0.1  # the truth is the cost model's: memory is soon known


def test_it_expects_what_it_saw(designer, landscape) -> None:
    seen = landscape.observe(17)
    designer.update([seen])
    prediction = designer.predict(17)
    assert prediction.covers(torch.tensor(seen.log_steps_per_s).exp()) and prediction.log_stddev < 0.1
    low, high = prediction.memory_interval
    assert low < seen.memory_bytes < high < 1.1 * low


def test_after_a_miss_intervals_are_wider(problem, candidates, landscape) -> None:
    widths = []
    for expected in (Prediction(steps_per_s=1.0, log_stddev=9.0), Prediction(steps_per_s=1e3, log_stddev=0.1)):
        designer = Oppa(problem, candidates, seed=0)
        designer.update([dataclasses.replace(landscape.observe(17), prediction=expected)])
        widths.append(designer.predict(20).log_stddev)
    assert widths[1] > 1.3 * widths[0]


@pytest.mark.slow
def test_contenders_that_noise_does_not_tell_apart_are_measured_again(designer, landscape) -> None:
    ran = sorted((index for index in range(32) if landscape.observe(index).measured), key=landscape.log_rate)
    slowest, *rest, first, second = ran
    best = landscape.log_rate(second)
    close = {first: best, second: best + 0.005}
    designer.update([dataclasses.replace(landscape.observe(index), log_steps_per_s=best - 0.5) for index in rest])
    designer.update([dataclasses.replace(landscape.observe(index), log_steps_per_s=rate) for index, rate in close.items()])
    wide = designer.predict(second).log_stddev
    assert designer.suggest(set(range(32)) - {slowest}) in close
    for index, rate in (*[(first, best - 0.05)] * 4, *[(second, best + 0.005)] * 4):
        designer.update([dataclasses.replace(landscape.observe(index), log_steps_per_s=rate)])
    assert designer.suggest(set(range(32)) - {slowest}) == slowest  # who is ahead is settled
    assert designer.predict(second).log_stddev < wide


def test_predicted_memory_has_an_uncertainty() -> None:
    """Models of memory are wrong now and then: what is thought not to fit is worth a little, far beyond nothing."""
    rate = Normal(torch.full((3,), 0.3, dtype=torch.float64), torch.full((3,), 0.05, dtype=torch.float64))
    slack = Normal(torch.tensor([-0.5, 0.1, 1.0], dtype=torch.float64), torch.full((3,), 0.02, dtype=torch.float64))
    fits, doubted, infeasible = value_of_new(rate, slack, 0.03**2, incumbent=0.0).tolist()
    assert 0.05 * ODD_MEMORY < doubted / fits < ODD_MEMORY and infeasible < 1e-6


def test_a_stalled_run_does_not_mislead(problem, candidates, make_planted) -> None:
    planted = make_planted(1)
    order = [index for index in torch.randperm(32, generator=torch.Generator().manual_seed(1)).tolist() if planted.observe(index).measured]
    regular, odd = [planted.observe(index) for index in order[:10]], planted.observe(order[10])
    beliefs = []
    for last in (odd, dataclasses.replace(odd, log_steps_per_s=odd.log_steps_per_s - 2.5)):
        designer = Oppa(problem, candidates, seed=0)
        designer.update([*regular, last])
        beliefs.append(designer.log_rate.of_candidates(torch.tensor([index for index in range(32) if index != odd.candidate])))
    assert (beliefs[1].mean - beliefs[0].mean).abs().max() < 0.3 and (beliefs[1].stddev < 2 * beliefs[0].stddev + 0.1).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *nightly(1, 2)])
def test_it_learns_the_same_one_by_one_as_at_once(seed, problem, candidates, make_planted) -> None:
    planted, order = make_planted(seed), torch.randperm(32, generator=torch.Generator().manual_seed(seed))[:10].tolist()
    at_once, in_turn = Oppa(problem, candidates, seed=0), Oppa(problem, candidates, seed=0)
    at_once.update([planted.observe(index) for index in order])
    for index in order:
        in_turn.suggest(set())
        in_turn.predict(index)
        in_turn.update([planted.observe(index)])
    for one, other in ((at_once.log_rate, in_turn.log_rate), (at_once.log_slack, in_turn.log_slack)):
        a, b = one.at(ALL), other.at(ALL)
        torch.testing.assert_close((a.mean, a.stddev), (b.mean, b.stddev), rtol=0, atol=0)
    assert at_once.suggest(set(order)) == in_turn.suggest(set(order))


def ranking(designer) -> list[int]:
    """The candidates in the order in which it would try them without learning."""
    order: list[int] = []
    while (candidate := designer.suggest(set(order))) is not None:
        order.append(candidate)
    return order


@pytest.mark.slow
def test_the_schedule_is_the_bound_of_equation_32(problem, candidates, landscape) -> None:
    def ranked(beta):
        designer = Oppa(dataclasses.replace(problem, search_options=SearchOptions(acquisition="ucb", beta=beta)), candidates, seed=0)
        designer.update([landscape.observe(index) for index in (3, 17, 20)])
        return ranking(designer), designer.log_rate

    by_schedule, process = ranked(None)
    beta = bound(process.log_determinant, process.noise)
    assert beta > 1 and by_schedule == ranked(beta)[0] != ranked(1.0)[0]
    stddev = process.at(ALL).stddev
    assert stddev[by_schedule[:8]].mean() > stddev[ranked(1e-3)[0][:8]].mean()


def test_a_space_of_one_candidate_is_searched(make_problem) -> None:
    problem = make_problem(("zero_stage = [0, 1]", "zero_stage = 0, dp = 4, tp = 1, pp = 1, micro_batch = 1"))
    candidates = problem.candidates()
    assert len(candidates) == 1
    designer = Oppa(problem, candidates, seed=0)
    assert designer.suggest(set()) == 0
    designer.update([measured(0, 0.5, 30 * 2**20)])
    assert designer.suggest({0}) is None
    assert designer.predict(0).log_stddev < 0.1


def unexpected(index: int):
    """A failure of a trial that was expected to fit."""
    return dataclasses.replace(failed(index), prediction=Prediction(steps_per_s=1.0, log_stddev=0.1, memory_bytes=1, memory_log_stddev=0.1))


def test_after_too_many_unexpected_failures_chance_takes_over(problem, candidates) -> None:
    choices = set()
    for seed in range(8):
        designer, tried = Oppa(problem, candidates, seed=seed), set(range(FAILURES_IN_A_ROW))
        designer.update([unexpected(index) for index in tried])
        choices.add(designer.suggest(tried))
    assert len(choices) > 1


@pytest.mark.slow
def test_failures_that_were_expected_or_follow_a_complete_trial_leave_the_choice_to_the_model(problem, candidates, landscape) -> None:
    large = Prediction(steps_per_s=1.0, log_stddev=0.1, memory_bytes=2 * problem.cluster.usable_bytes, memory_log_stddev=0.1)
    tried = set(range(FAILURES_IN_A_ROW))
    expected = [dataclasses.replace(failed(index, "out_of_memory"), prediction=large) for index in tried]
    after = [landscape.observe(20), *map(unexpected, tried)]
    for seen, taken in ((expected, tried), (after, tried | {20})):
        choices = set()
        for seed in range(4):
            designer = Oppa(problem, candidates, seed=seed)
            designer.update(seen)
            choices.add(designer.suggest(taken))
        assert len(choices) == 1


def test_failures_of_an_unknown_cause_lead_to_candidates_that_need_less(problem, candidates) -> None:
    designer, tried = Oppa(problem, candidates, seed=0), set()
    before = designer.log_slack.at(ALL).mean
    for _ in range(4):
        tried.add(designer.suggest(tried))
        designer.update([failed(index) for index in sorted(tried)][-1:])
    assert (designer.log_slack.at(ALL).mean > before).all()


def test_after_a_complete_trial_nothing_is_tried_that_hardly_can_fit(make_problem) -> None:
    problem = make_problem(("100 MiB", "12 MiB"))
    candidates = problem.candidates()
    designer = Oppa(problem, candidates, seed=0)
    least = int(designer.log_slack.at(ALL).mean.argmin())
    assert len(ranking(designer)) == len(candidates)
    designer.update([measured(least, 0.5, 12 * MIB - 1)])
    order = ranking(designer)
    slack = designer.log_slack.of_candidates(ALL)
    assert len(order) < len(candidates) - 1 and all(slack.mean[each] < TOO_LARGE * slack.stddev[each] for each in order)


@pytest.mark.slow
def test_a_trial_that_runs_is_expected_to_end_as_predicted(designer, problem, candidates, landscape) -> None:
    seen = [landscape.observe(index) for index in (3, 17)]
    designer.update(seen)
    running = designer.suggest({3, 17})
    expected = designer.predict(running)
    ended = dataclasses.replace(measured(running, math.log(expected.steps_per_s), expected.memory_bytes), log_variance=0.0)
    believer = Oppa(problem, candidates, seed=0)
    believer.update([*seen, ended])
    tried = {3, 17, running}
    assert designer.suggest_with_pending({running}, tried) == believer.suggest(tried)


@pytest.mark.slow
def test_what_it_suggests_gains_most_per_second_once_something_ran_to_its_end(designer, candidates, landscape) -> None:
    assert designer.expected_gain(0) is None
    tried: list[int] = []
    while not any(landscape.observe(each).measured for each in tried):
        tried.append(designer.suggest(set(tried)))
        designer.update([landscape.observe(tried[-1])])
    chosen = designer.suggest(set(tried))
    open_ = [each for each in range(len(candidates)) if each not in tried and not designer.infeasible[each]]
    rate, slack = designer.averaged_rate.of_candidates(torch.tensor(open_)), designer.log_slack.of_candidates(torch.tensor(open_))
    seconds = TrialLength(start_s=60.0, steps=STEPS).seconds((-rate.mean).exp(), probability_fits(slack))
    paces = {each: designer.expected_gain(each) / float(takes) for each, takes in zip(open_, seconds, strict=True)}
    assert paces[chosen] == max(paces.values()) > 0
    assert designer.expected_gain(tried[-1]) == 0  # the only contender
