"""`oppa bench transfer` computes effects from its runs, and its searches start from studies of their device."""

import itertools

import numpy as np
import pytest

from experiments.transfer.arms import ARMS, MISLEADING, MISLEADING_ALIKE, NONE, ONE, TRIALS, TransferRun
from experiments.transfer.cases import CASES, task
from experiments.transfer.run import TransferEffect
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.transfer import combined
from tests.bench.searches import run_of

TARGETS = ("moe", "copus-32b")


def found(target: str, arm: str, seed: int, at: int) -> TransferRun:
    """A search that finds the best in its `at`-th trial, and half of it before."""
    best = (0.5,) * (at - 1) + (1.0,) * (TRIALS - at + 1)
    seconds = tuple(itertools.accumulate([10.0] * TRIALS))
    return TransferRun(run=run_of(best, seconds, designer=arm, task=target, seed=seed), weights={})


def effect(moe: int, copus: int) -> TransferEffect:
    """Return the effect of searches that find the best in these trials, and in the fourth without transfer."""
    at = {(NONE, "moe"): 4, (NONE, "copus-32b"): 4, (ONE, "moe"): moe, (ONE, "copus-32b"): copus}
    made = [found(target, arm, seed, trial) for (arm, target), trial in at.items() for seed in range(3)]
    return TransferEffect.of(made, ONE, TARGETS)


def test_the_same_searches_have_no_effect() -> None:
    same = effect(4, 4)
    assert same.seconds.value == same.worst_seconds == 1 and same.harmed == 0
    assert all(each.value == each.low == each.high == 0 for each in same.best_at.values())


def test_a_gain_on_one_target_hides_no_harm_on_another() -> None:
    mixed = effect(1, 8)
    assert mixed.seconds.value == pytest.approx((1 / 4 * 8 / 4) ** 0.5)
    assert (mixed.harmed, mixed.worst, mixed.worst_seconds) == (0.5, "copus-32b", pytest.approx(2))
    assert mixed.best_at[1].value == pytest.approx(0.25) and mixed.best_at[5].value == pytest.approx(-0.25)


def test_every_source_has_its_targets_device() -> None:
    for name in (name for name in CASES if not name[0].isdigit()):
        assert len({task(each).problem.cluster.device for each in (name, *CASES[name].sources)}) == 1


@pytest.mark.slow
def test_the_misleading_study_is_of_another_framework_and_counts_less_for_it() -> None:
    target = task("copus-32b")
    weights, ranks = [], []
    for arm in (MISLEADING, MISLEADING_ALIKE):
        prior = combined(target.problem, ARMS[arm]("copus-32b", 0))
        weights.append(prior.used[0].weight)
        rates = Oppa(target.problem, target.candidates, seed=0, beliefs=prior.beliefs).log_rate.at(slice(None)).mean
        ranks.append(int((rates > rates[int(np.nanargmax(target.steps_per_s))]).sum()))
    assert 0 < weights[0] < weights[1] and ranks[0] <= ranks[1]
