"""The full size takes over the results of the smaller one, as far as they hold, and verifies three of them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.coefficients import medians
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.memory_limits import memory_limits
from oppa.cost.step_time import step_time
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation
from oppa.tuning.proxy.rung import Rung
from oppa.tuning.proxy.stand_ins import proxy_of
from oppa.tuning.proxy.upward import ATTEMPTS, VERIFIED, Upward

SLOWER, LARGER = 1.4, 1.2
"""Factors of this truth on the step time and on the memory that the prior predicts."""


def truth(job: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the true log throughput and the true bytes of every candidate."""
    work, (time, size) = workload_of(job, job.candidates()), beliefs_of_job(job)
    return -np.log(SLOWER * step_time(work, medians(time)).numpy()), LARGER * memory(work, medians(size)).numpy()


def seen(job: Problem, candidate: int, **changed) -> Observation:
    rates, needed = truth(job)
    usual = Observation(
        candidate=candidate,
        outcome="completed",
        log_steps_per_s=float(rates[candidate]),
        log_variance=1e-4,
        memory_bytes=round(needed[candidate]),
        seconds=1.0,
    )
    return dataclasses.replace(usual, **changed)


def failed(candidate: int) -> Observation:
    return Observation(candidate=candidate, outcome="out_of_memory", log_steps_per_s=None, log_variance=None, memory_bytes=None)


@pytest.fixture(scope="module")
def proxy(job, full):
    return proxy_of(job, full, Rung(hosts=2, layers=12, global_batch=128))


@pytest.fixture
def upward(job, full, proxy):
    trials = [seen(proxy.problem, at) for at in range(0, len(proxy.candidates), len(proxy.candidates) // 8)]
    return Upward(job, full, proxy, trials)


def test_what_the_smaller_size_teaches_holds_at_full_size(job, full, proxy, upward) -> None:
    rates, needed = truth(job)
    untaught = Upward(job, full, proxy, ())
    for quantity, of in enumerate((rates, np.log(needed / memory_limits(job).reported))):
        before, after = (np.abs(each.of_candidates()[quantity].mean.numpy() - of) for each in (untaught, upward))
        assert np.median(after) < 0.5 * np.median(before)


def test_the_full_size_is_known_less_well_than_the_smaller_one(full, upward) -> None:
    rate, _ = upward.of_candidates()
    below = upward.log_rate.likeliest.of_candidates(torch.arange(len(full), len(upward.log_rate.likeliest.points)))
    assert rate.stddev.min() > math.sqrt(upward.unseen_variance) > 0
    assert rate.stddev.mean() > below.stddev.mean()


def test_at_its_own_size_a_measurement_is_its_own_prediction(job, full) -> None:
    proxy = proxy_of(job, full, Rung(hosts=8, layers=12, global_batch=512))
    upward = Upward(job, full, proxy, [seen(job, at) for at in range(0, len(full), len(full) // 8)])
    assert upward.unseen_variance == 0
    rate, _ = upward.of_candidates()
    assert np.median(np.abs(rate.mean.numpy() - truth(job)[0])) < 0.05


def test_the_first_at_full_size_is_predicted_fastest_of_those_that_fit(full, upward) -> None:
    first = upward.suggest(set())
    (rate, slack), every = upward.of_candidates(), torch.arange(len(full))
    worth = rate.mean + torch.special.log_ndtr(-slack.mean / slack.stddev)
    assert worth[first] == worth[every].max()


@pytest.mark.slow
def test_three_are_measured_and_no_more(job, upward) -> None:
    taken = set()
    for _ in range(VERIFIED):
        candidate = upward.suggest(taken)
        assert candidate is not None and candidate not in taken
        taken.add(candidate)
        upward.update([seen(job, candidate)])
    assert upward.suggest(taken) is None


def test_it_does_not_blame_memory_once_three_were_measured(job, upward) -> None:
    assert "run out of memory" in upward.reason_to_end(9)
    upward.update([seen(job, at) for at in range(3)])
    assert upward.suggest({0, 1, 2}) is None and upward.reason_to_end(9).startswith("[proxy] measures at most 3 ")


def test_the_next_takes_the_place_of_one_that_ran_out_of_memory(job, upward) -> None:
    first = upward.suggest(set())
    upward.update([failed(first)])
    ruled_out = set(torch.nonzero(upward.pruning.infeasible).flatten().tolist())
    assert first in ruled_out
    second = upward.suggest({first})
    assert second is not None and second not in ruled_out
    upward.update([seen(job, second)])
    assert upward.suggest({first, second}) is not None


@pytest.mark.slow
def test_failures_end_after_some_attempts_if_anything_was_measured(full, job, upward) -> None:
    taken = {upward.suggest(set())}
    upward.update([seen(job, next(iter(taken)))])
    others = [at for at in range(len(full)) if at not in taken][: ATTEMPTS - 1]
    upward.update([dataclasses.replace(failed(at), outcome="failed") for at in others])
    assert upward.suggest(taken | set(others)) is None


@pytest.mark.slow
def test_the_baseline_is_none_of_the_three(make_job) -> None:
    job = make_job("baseline = {dp = 64, micro_batch = 8}\n")
    full = job.candidates()
    upward = Upward(job, full, proxy_of(job, full, Rung(hosts=2, layers=12, global_batch=128)), ())
    baseline, taken = full.index_of(job.baseline), {full.index_of(job.baseline)}
    upward.update([seen(job, baseline)])
    for _ in range(VERIFIED):
        taken.add(candidate := upward.suggest(taken))
        upward.update([seen(job, candidate)])
    assert upward.suggest(taken) is None and len(taken) == VERIFIED + 1
