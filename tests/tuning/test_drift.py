"""Slower configurations reveal a machine that becomes slower, and a steady one costs a few repeats."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from experiments.drift.search import loss_of_search
from oppa.study.records import DRIFT
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.drift import CLOSEST, FEWEST, drift_of, is_due
from tests.tuning.conftest import trial_of


def study(candidates, speeds, *, repeat_every, drift=lambda _: 0.0, noise=0.0, seed=0, hosts=lambda _: ()):
    """Return trials of configurations of these log speeds; the first one is repeated after every so many."""
    draw, trials, fresh = np.random.default_rng(seed), [], 0
    while fresh < len(speeds):
        is_repeat = trials and len(trials) % repeat_every == 0
        which, fresh = (0, fresh) if is_repeat else (fresh, fresh + 1)
        rate = math.exp(speeds[which] + drift(len(trials)) + noise * draw.standard_normal())
        purpose = DRIFT if is_repeat else "search"
        number = len(trials)
        trials.append(trial_of(number, candidates.configuration(which), rate, purpose=purpose, hosts=hosts(number)))
    return trials


def test_a_walk_is_found_and_taken_off(candidates) -> None:
    trials = study(candidates, [0.0] * 24, repeat_every=5, drift=lambda at: -0.02 * at, noise=0.002)
    found = drift_of(trials)
    true = {trial.id: -0.02 * (trial.id - trials[-1].id) for trial in trials}
    assert max(abs(found.offsets[number] - true[number]) for number in true) < 0.1 < max(true.values()) / 4
    assert found.change == pytest.approx(math.exp(-max(found.offsets.values())) - 1, abs=1e-6) and found.change < -0.3


@pytest.mark.parametrize("stddev", [TRIAL_STDDEV, 0.05])
def test_a_steady_machine_is_rarely_corrected_and_a_noisy_one_neither(candidates, stddev) -> None:
    """It is corrected in 5% of studies, the level of the likelihood ratio; 60 studies leave three of its standard deviations."""
    speeds = list(np.random.default_rng(1).normal(0, 0.3, 24))
    found = [bool(drift_of(study(candidates, speeds, repeat_every=8, noise=stddev, seed=seed)).offsets) for seed in range(60)]
    assert sum(found) / 60 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)


def test_nothing_is_corrected_without_repeats_and_several_sets_of_hosts_repeat_nothing(candidates) -> None:
    slowing = {"repeat_every": 5, "drift": lambda at: -0.02 * at}
    trials = study(candidates, [0.0] * 24, **slowing)
    assert drift_of([dataclasses.replace(trial, purpose="search") for trial in trials]).offsets == {}
    elsewhere = study(candidates, [0.0] * 24, **slowing, hosts=lambda at: (f"n{at % 2}",))
    assert drift_of(elsewhere).offsets == {} and not is_due(elsewhere[:-4], resumed=True) and is_due(trials[:-4], resumed=True)


def test_repeats_become_rarer_while_the_machine_stands_still(candidates) -> None:
    trials, at = [], []
    for number in range(44):
        due = is_due(trials)
        at += [number] if due else []
        trials.append(trial_of(number, candidates.configuration(0 if due else number % 32), 1.0, purpose=DRIFT if due else "search"))
    assert at[0] == FEWEST and len(at) <= 4 and all(later >= 2 * earlier for earlier, later in itertools.pairwise(at))


def test_a_drifting_machine_is_watched_closely_and_a_failing_repeat_does_not_loop(candidates) -> None:
    trials = study(candidates, [0.0] * 24, repeat_every=6, drift=lambda at: -0.1 * at)
    last = max(trial.id for trial in trials if trial.purpose == DRIFT)
    watched = [*trials[: last + 1], *(trial_of(last + 1 + more, candidates.configuration(25 + more), 0.1) for more in range(CLOSEST))]
    assert is_due(watched) and not is_due(watched[:-1])
    failed = trial_of(len(trials), candidates.configuration(0), None, "failed", purpose=DRIFT)
    assert not is_due([*trials, failed]) and not is_due([*trials, failed], resumed=True)


def test_a_resumed_and_an_ending_search_repeat_once_more(candidates) -> None:
    trials = study(candidates, [0.0] * 16, repeat_every=100)
    assert is_due(trials, resumed=True) and is_due(trials, ending=True) and not is_due(trials[: FEWEST - 1], resumed=True)


@pytest.mark.slow
def test_a_wrong_winner_is_avoided_and_a_steady_machine_costs_two_repeats(tmp_path) -> None:
    """Results of more searches: `oppa bench drift`."""
    assert loss_of_search(tmp_path / "blind", 0.02, 11, watches=False)[0] > 0.2
    assert loss_of_search(tmp_path / "watching", 0.02, 11, watches=True)[0] == 0.0
    steady, trials = loss_of_search(tmp_path / "steady", 0.0, 11, watches=True)
    assert steady < 0.01 and trials <= 32
