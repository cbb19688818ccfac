"""A better trial never ends early, a much slower one soon does, and the paper's rules act as written (OPPA section 4.3)."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.signal import lfilter

from oppa.errors import InputError
from oppa.problem.training import Limits
from oppa.trials.throughput import TRIAL_STDDEV, estimate
from oppa.tuning.designer import Observation
from oppa.tuning.stopping import (
    PRECISION,
    RULES,
    TAU,
    Incumbent,
    against,
    confidence_factor,
    make_rule,
    precise_after,
    until_precise,
)
from tests.tuning.conftest import trial_of

LIMITS = Limits(q_min=5, q_max=30)
TRIALS = 100
START_S = 10.0


def stopped_at(rule, step_times_s, incumbent=1.0, start_s=0.0) -> int | None:
    """Return after how many steps it stops, the first included; None if it runs to its end."""
    rival = incumbent and Incumbent(steps_per_s=incumbent)
    return next((n for n in range(1, len(step_times_s)) if rule(step_times_s[:n], rival, start_s)), None)


def trials(rate: float, noise: float, *, warm_up: int = 1, slow: float = 3.0):
    """Step times of trials whose true throughput is known; the first steps are slower."""
    g = np.random.default_rng(0)
    usual = np.where(np.arange(LIMITS.q_max) < warm_up, slow, 1.0) / rate
    return usual * np.exp(noise * g.standard_normal((TRIALS, LIMITS.q_max)))


@pytest.mark.parametrize(("noise", "share"), [(0.0, 0.0), (0.01, 0.0), (0.05, 0.02), (0.1, 0.06), (0.3, 0.12)])
def test_sure_stops_hardly_anything_that_is_no_worse(noise, share) -> None:
    rule = make_rule("sure", LIMITS)
    stopped = sum(stopped_at(rule, list(times)) is not None for times in trials(1.0, noise))
    # Each look errs once in a hundred at most, and a trial has 24 of them: of 400 trials 0%, 0%, 0.3%, 2% and 6% were stopped.
    assert stopped <= share * TRIALS


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05, 0.1])
def test_sure_stops_what_takes_30_percent_longer_as_soon_as_it_may(noise) -> None:
    rule = make_rule("sure", LIMITS)
    stopped = [stopped_at(rule, list(times)) for times in trials(1 / 1.3, noise)[:50]]
    assert np.median([n or math.inf for n in stopped]) == LIMITS.q_min + 1  # the first step is no measurement


@pytest.mark.parametrize("name", RULES)
def test_a_rule_sees_no_step_before_the_program_has_settled(name) -> None:
    settling = make_rule(name, dataclasses.replace(LIMITS, settle=20, q_max=50))
    usual, later = make_rule(name, LIMITS), [0.01] * 20
    for times in ([3.0] + [1.3, 1.31] * 15, [3.0] + [1.0] * 30):
        found, expected = stopped_at(settling, later + times), stopped_at(usual, times)
        assert found == (None if expected is None else 20 + expected)
    assert settling.estimate([*later, 3.0, 1.0, 1.0]).steps_per_s == 1.0


@pytest.mark.parametrize("slow", [1.3, 2.0, 10.0])
@pytest.mark.parametrize("warm_up", [1, 2, 3, 4])
def test_sure_waits_for_a_warm_up_shorter_than_q_min(warm_up, slow) -> None:
    rule = make_rule("sure", LIMITS)
    stopped = [stopped_at(rule, list(times)) for times in trials(1.0, 0.01, warm_up=warm_up, slow=slow)[:50]]
    assert stopped == [None] * 50


def test_sure_counts_q_min_from_the_end_of_the_warm_up() -> None:
    rule = make_rule("sure", LIMITS)
    stopped = [stopped_at(rule, list(times)) for times in trials(1 / 1.3, 0.01, warm_up=3, slow=10.0)[:50]]
    assert min(n for n in stopped if n) == 3 + LIMITS.q_min


@pytest.mark.parametrize("name", RULES)
@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=30), st.integers(2, 12))
def test_none_stops_before_q_min_nor_as_slower_without_an_incumbent(name, step_times_s, q_min) -> None:
    rule = make_rule(name, Limits(q_min=q_min, q_max=40))
    assert rule(step_times_s, None) in (None, *["completed"] * (name == "precise"))
    assert not rule(step_times_s[:q_min], Incumbent(steps_per_s=1e9))


@pytest.mark.parametrize("name", ["sure", "paper", "paper-bound"])
def test_a_much_slower_trial_is_stopped_at_q_min(name) -> None:
    assert stopped_at(make_rule(name, LIMITS), [3.0] + [1.0, 1.01] * 14, incumbent=10.0) == LIMITS.q_min + 1


@pytest.mark.parametrize(("noise", "steps"), [(0.005, 7), (0.03, 21), (0.2, None)])
def test_a_trial_whose_start_takes_long_is_complete_once_its_throughput_is_precise(noise, steps) -> None:
    rule = make_rule("precise", LIMITS)
    stopped = [stopped_at(rule, list(times), None, start_s=1000.0) for times in trials(1.0, noise)]
    assert statistics.median(n or math.inf for n in stopped) == (pytest.approx(steps, abs=2) if steps else math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
@pytest.mark.parametrize("start_s", [1.0, 10.0, 100.0])
def test_trials_teach_per_second_about_as_much_as_those_of_the_best_fixed_length(noise, start_s) -> None:
    rule, seen = make_rule("precise", LIMITS), trials(1.0, noise)

    def squares_times_s(lengths) -> float:
        errors = [math.log(estimate(times[:n]).steps_per_s) for times, n in zip(seen, lengths, strict=True)]
        seconds = [start_s + times[:n].sum() for times, n in zip(seen, lengths, strict=True)]
        return float((TRIAL_STDDEV**2 + np.mean(np.square(errors))) * np.mean(seconds))

    best = min(squares_times_s([n] * TRIALS) for n in range(LIMITS.q_min + 1, LIMITS.q_max + 1))
    assert squares_times_s([stopped_at(rule, list(times), None, start_s) or LIMITS.q_max for times in seen]) < 1.4 * best


def test_the_steps_that_are_expected_of_precise_trials_are_those_that_they_take() -> None:
    rule, seen, starts = make_rule("precise", LIMITS), trials(1.0, TRIAL_STDDEV), np.array([0.5, 5.0, 20.0, 500.0])
    taken = [statistics.median(stopped_at(rule, list(times), None, each) or LIMITS.q_max for times in seen) - 1 for each in starts]
    assert precise_after(np.ones(4), starts, LIMITS) == pytest.approx(taken, abs=2)
    assert sorted(taken) == taken and taken[0] < taken[-1]


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30), st.floats(0.1, 10), st.floats(0, 1000))
def test_precise_ends_what_sure_ends_and_completes_no_later_the_shorter_the_start(step_times_s, incumbent, start_s) -> None:
    precise, sure, rival = make_rule("precise", LIMITS), make_rule("sure", LIMITS), Incumbent(steps_per_s=incumbent)
    ended = sure(step_times_s, rival)
    assert (precise(step_times_s, rival, start_s) == "terminated_early") == (ended is not None)
    assert ended or precise(step_times_s, rival, start_s) == precise(step_times_s, None, start_s) != "terminated_early"
    assert precise(step_times_s, None, start_s) in (None, precise(step_times_s, None, start_s / 2))


def test_a_mean_that_was_taken_as_precise_is() -> None:
    complete = until_precise(LIMITS)
    ends = [(times, stopped_at(complete, list(times))) for times in trials(1.0, 0.03)]
    errors = [abs(math.log(estimate(times[:n]).steps_per_s)) for times, n in ends if n]
    assert len(errors) > 0.9 * TRIALS
    assert np.sqrt(np.mean(np.square(errors))) < 1.5 * PRECISION  # stopping on a small variance is optimistic


def test_never_is_never() -> None:
    assert stopped_at(make_rule("never", LIMITS), [1.0] * 30, incumbent=1e9) is None


def test_the_paper_s_rule_also_stops_what_is_better_by_less_than_tau() -> None:
    rule = make_rule("paper", LIMITS)
    for better, stops in ((-0.1, True), (0.5 * TAU, True), (2 * TAU, False)):
        assert (stopped_at(rule, [1 / (1.0 + better)] * 30) == LIMITS.q_min + 1) == stops


@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=30), st.integers(1, 500))
def test_the_paper_s_bound_is_equation_56(step_times_s, trials) -> None:
    limits, q = dataclasses.replace(LIMITS, trials=trials), len(step_times_s) - 1
    rates = [1 / t for t in step_times_s[1:]]
    low, middle, high = statistics.quantiles(step_times_s[1:], n=4, method="inclusive")
    bound = 2 * (high - low)
    assume(not bound or all(abs(abs(1 / rate - middle) - bound) > 1e-9 for rate in rates))  # rounding decides a tie
    kept = [rate for rate in rates if abs(1 / rate - middle) <= bound + 1e-12]
    # Computed another way: exp(c_1^2 / 2) = 2 N q_max / delta, whose tail Chernoff's bound takes.
    c1 = math.sqrt(2.0) * math.sqrt(math.log(2) + math.log(trials) + math.log(limits.q_max) - math.log(0.05))
    threshold = statistics.fmean(kept) - c1 * statistics.pstdev(kept) * (5**-0.5 + q**-0.5)
    rule = make_rule("paper-bound", limits)
    above, below = (Incumbent(steps_per_s=threshold + change) for change in (1e-9, -1e-9))
    assert rule(step_times_s, above) and not rule(step_times_s, below)


def test_c_1_of_lemma_f_7_by_hand() -> None:
    assert confidence_factor(dataclasses.replace(LIMITS, trials=50)) == pytest.approx(4.6909, abs=1e-4)  # sqrt(2 ln 60000)
    assert confidence_factor(dataclasses.replace(LIMITS, trials=1, q_max=1), delta=0.5) == pytest.approx(1.6651, abs=1e-4)  # sqrt(2 ln 4)


def test_lemma_f_7_holds_for_normal_repetitions() -> None:
    draws = np.random.default_rng(0).standard_normal((2_000, LIMITS.q_max))
    means = np.abs(draws.cumsum(axis=1) / np.arange(1, LIMITS.q_max + 1))
    bound = confidence_factor(dataclasses.replace(LIMITS, trials=len(draws))) / np.sqrt(np.arange(1, LIMITS.q_max + 1))
    assert (means <= bound).all()


def test_the_paper_s_rule_compares_trial_and_incumbent_by_one_estimator() -> None:
    jittery = (1.0, *([0.5, 1.5] * 15))  # mean(1/t) = 4/3, q / sum(t) = 1
    seen = Observation(candidate=0, outcome="completed", log_steps_per_s=0.0, log_variance=0.0, memory_bytes=None, step_times_s=jittery)
    steady = [1.0 / 1.2] * 31  # 1.2 steps/s by both: faster than the incumbent by q / sum(t), slower by mean(1/t)
    assert against(make_rule("paper", LIMITS), [seen])(steady, START_S)
    assert not against(make_rule("sure", LIMITS), [seen])(steady, START_S)
    assert against(make_rule("paper", LIMITS), [seen])(jittery, START_S)  # what is equal is below the incumbent plus tau


def test_sure_ends_no_trial_of_a_search_within_a_second_of_steps_and_the_paper_s_rules_do() -> None:
    fast = Observation(
        candidate=0, outcome="completed", log_steps_per_s=5.0, log_variance=0.0, memory_bytes=None, step_times_s=(0.006,) * 9
    )
    ends = {name: against(make_rule(name, LIMITS), [fast]) for name in ("sure", "precise", "paper")}
    steps = {name: next(n for n in range(2, 200) if rule([0.02] * n, START_S)) for name, rule in ends.items()}
    assert steps == {"sure": 51, "precise": 51, "paper": 6}


@pytest.mark.parametrize("name", ["sure", "precise", "paper"])
def test_an_incumbent_of_before_a_drift_of_the_machine_is_compared_as_it_would_run_now(candidates, name) -> None:
    """The machine became 30% slower, so a trial that is 20% faster than the incumbent takes longer steps than the incumbent took."""
    before = dataclasses.replace(trial_of(0, candidates.configuration(0), 1.0), step_times_s=(1.0,) * 30)
    seen, now = Observation.of(before, candidates, offset=math.log(1.3)), [1.3 / 1.2] * 29
    assert against(make_rule(name, LIMITS), [Observation.of(before, candidates)])([1.3] * 29, START_S) == "terminated_early"
    assert against(make_rule(name, LIMITS), [seen])(now, START_S) != "terminated_early"
    assert against(make_rule(name, LIMITS), [seen])([1.3 * 1.2] * 29, START_S) == "terminated_early"


def equally_fast(random, noise: float, rho: float) -> Observation:
    """A complete trial of a configuration as fast as all others: trials differ by 3%, and steps by `noise`, neighbours alike."""
    steps = lfilter([math.sqrt(1 - rho**2)], [1, -rho], random.standard_normal(LIMITS.q_max + 100))[101:]
    times = (30.0, *(10 * np.exp(TRIAL_STDDEV * random.standard_normal() + noise * steps)).tolist())
    return Observation(
        candidate=0, outcome="completed", log_steps_per_s=-math.log(10), log_variance=0.0, memory_bytes=None, step_times_s=times
    )


@pytest.mark.parametrize(("noise", "rho"), [(0.01, 0.0), (0.05, 0.0), (0.05, 0.8)])
def test_a_trial_as_fast_as_the_luckiest_of_five_hardly_ever_ends_early(noise, rho) -> None:
    """Rules without the noise of the incumbent ended 10%, 14% and 36% of such trials."""
    random, rule, ended = np.random.default_rng(0), make_rule("sure", LIMITS), 0
    for _ in range(40):
        earlier = [dataclasses.replace(equally_fast(random, noise, rho), candidate=number) for number in range(5)]
        stops, times = against(rule, earlier), equally_fast(random, noise, rho).step_times_s
        ended += any(stops(times[:n], START_S) for n in range(2, len(times)))
    assert ended <= 3


def test_repeats_make_the_incumbent_known_and_rivals_make_it_doubtful() -> None:
    alone, repeated = Incumbent(steps_per_s=1.0), Incumbent(steps_per_s=1.0, log_variance=TRIAL_STDDEV**2 / 4)
    rivals = Incumbent(steps_per_s=1.0, rivals=5)
    rule = make_rule("sure", LIMITS)
    ends = [[bool(rule([3.0] + [slower] * 10, each)) for slower in (1.05, 1.08, 1.1, 1.2)] for each in (repeated, alone, rivals)]
    assert ends == [[False, True, True, True], [False, False, True, True], [False, False, False, True]]


@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=30), st.integers(-5, 5))
def test_sure_does_not_depend_on_the_unit_of_time(step_times_s, exponent) -> None:
    rule, factor = make_rule("sure", LIMITS), 2.0**exponent  # exact in floating point
    assert rule(step_times_s, Incumbent(steps_per_s=1.2)) == rule([factor * t for t in step_times_s], Incumbent(steps_per_s=1.2 / factor))


@pytest.mark.parametrize("name", ["precise", "sure", "paper-bound", "never"])
@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_a_rule_for_an_objective_does_not_depend_on_its_unit(name, unit) -> None:
    best, usual = ((np.random.default_rng(0).normal(mean, 0.05, 30)).tolist() for mean in (3.0, 5.0))

    def end(unit, rival) -> tuple[int, str | None]:
        known = {"candidate": 0, "outcome": "completed", "log_variance": 0.0, "memory_bytes": None}
        seen = Observation(**known, log_steps_per_s=-math.log(3.0 * unit), step_times_s=tuple(unit * each for each in best))
        rule = against(make_rule(name, LIMITS, in_seconds=False), [seen] if rival else [])
        ends = ((n, rule([unit * each for each in usual[:n]], START_S)) for n in range(2, 30))
        return next((each for each in ends if each[1]), (30, None))

    assert [end(unit, rival) for rival in (True, False)] == [end(1.0, rival) for rival in (True, False)]
    assert (end(unit, True)[1] == "terminated_early") is (name != "never")
    assert (end(unit, False)[1] == "completed") is (name == "precise")


def test_an_unknown_rule_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        make_rule("shure", LIMITS)
    assert "sure" in caught.value.hint
