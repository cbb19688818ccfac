"""Every designer obeys one limit of reported memory, `problem.cluster.usable_bytes`: all of it, however the job came to it."""

import dataclasses
import math

import numpy as np
import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.memory_limits import memory_limits
from oppa.cost.prediction import predict
from oppa.problem.cluster import usable_of
from oppa.problem.problem import Problem
from oppa.tuning.designers import make_designer
from oppa.tuning.designers.active_profiling import ActiveProfiling
from oppa.tuning.designers.analytic_memory import memory_bytes
from tests.sampling import nightly
from tests.tuning.conftest import INSTALLED

LIMITS = {
    "oppa": lambda designer: designer.limits.reported,
    "oppa-no-early-stop": lambda designer: designer.limits.reported,
    "oppa-no-prior": lambda designer: designer._limits.reported,
    "oppa-paper": lambda designer: designer._limit,
    "cost-model": lambda designer: designer._limit,
    "vanilla-bo": lambda designer: math.exp(designer._log_limit),
    "vanilla-bo-cei": lambda designer: math.exp(designer._log_limit),
    "forest-physics": lambda designer: designer._limits.reported,
    "xgboost-physics": lambda designer: designer._limits.reported,
    "smac-physics": lambda designer: designer._limits.reported,
    "tpe": lambda designer: math.exp(designer._log_limit),
    "optuna-gp": lambda designer: math.exp(designer._log_limit),
}
"""Bytes with which each designer compares its predictions."""
ON_PAPER = ("grid", "planner")
"""They put off, from the start, what an estimate says does not fit."""
RANKED = ("prior-rank",)
"""Their order, fixed from the start, weighs throughput by the probability that the cost model's memory fits."""
WITHOUT = ("xgboost", "random", "exhaustive", "smac", "baybe")
"""They learn that a configuration does not fit when it has run out of memory."""

LONG = ("oppa-paper", "oppa-no-early-stop", "vanilla-bo-cei", "forest-physics", "xgboost-physics", "optuna-gp", "baybe")
"""These think for long, or take long to import."""


@pytest.fixture(scope="module")
def stated(make_problem) -> Problem:
    """A job on GPUs that states its limit."""
    return make_problem(("CPU", "H100"))


def without_statement(problem: Problem) -> Problem:
    """The same job on a device of which as much can be used."""
    limit_bytes = problem.cluster.usable_bytes
    whole_bytes = next(size for size in range(int(limit_bytes / 0.9), 2 * limit_bytes) if usable_of(size) == limit_bytes)
    cluster = dataclasses.replace(problem.cluster, memory_limit_bytes=whole_bytes, memory_limit_stated=False)
    return dataclasses.replace(problem, cluster=cluster)


@pytest.fixture(scope="module")
def unstated(stated) -> Problem:
    return without_statement(stated)


def test_each_designer_is_looked_at() -> None:
    assert {*LIMITS, *ON_PAPER, *RANKED, *WITHOUT} == set(INSTALLED)


@pytest.mark.parametrize("name", LIMITS)
def test_a_stated_limit_is_a_designer_s_limit_whole(name, stated, unstated) -> None:
    for problem in (stated, unstated):
        designer = make_designer(name, problem, problem.candidates(), seed=0)
        assert LIMITS[name](designer) == pytest.approx(problem.cluster.usable_bytes, abs=1) == 100 * 2**20


@pytest.mark.parametrize("name", ON_PAPER)
@pytest.mark.parametrize("kind", ["stated", "unstated"])
def test_what_needs_nearly_all_of_the_limit_is_not_put_off(name, kind, request) -> None:
    problem = request.getfixturevalue(kind)
    candidates = problem.candidates()
    share = memory_bytes(problem, candidates) / problem.cluster.usable_bytes
    designer, order = make_designer(name, problem, candidates, seed=0), []
    while (index := designer.suggest(set(order))) is not None:
        order.append(index)
    nearly, too_much = np.flatnonzero((share > 0.9) & (share <= 1)), np.flatnonzero(share > 1)
    place = np.argsort(order)
    assert len(nearly) and len(too_much) and place[nearly].max() < place[too_much].min()


def test_what_needs_nearly_all_of_the_limit_is_predicted_to_fit(make_problem) -> None:
    stated = make_problem(("CPU", "H100"), ("100 MiB", "420 MiB"))
    for problem in (stated, without_statement(stated)):
        predicted = predict(workload_of(problem, problem.candidates()), *beliefs_of_job(problem))
        share = predicted["predicted_memory_bytes"] / memory_limits(problem).predicted
        assert memory_limits(problem).reported == pytest.approx(420 * 2**20, abs=1)
        assert ((share <= 1) == predicted["fits"]).all() and share.between(0.9, 1).any() and (share > 1).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in INSTALLED if name not in LONG), "active", *nightly(*LONG)])
def test_a_search_is_the_same_whether_the_limit_is_stated_or_the_device_s(name, stated, unstated, landscape) -> None:
    """Nothing but `usable_bytes` reaches a designer: the two jobs agree in that, and differ in every other number of bytes."""
    orders = []
    for problem in (stated, unstated):
        candidates = problem.candidates()
        active = ActiveProfiling(problem, candidates, seed=0, bound=0.01) if name == "active" else None
        designer, order = active or make_designer(name, problem, candidates, seed=0), list[int]()
        while len(order) < 5 and (index := designer.suggest(set(order))) is not None:  # a profile may end sooner
            order.append(index)
            designer.update([landscape.observe(index)])
        orders.append(order)
    assert len(orders[0]) > 1 and orders[0] == orders[1]
