"""The record of a study: its facts and rates are in the unit of the objective, and what was spent adds up."""

import numpy as np
import pytest

from oppa.problem.objective import Objective
from oppa.report.page import spent_rows
from oppa.report.study import sections, tied
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.spending import Spending, spent_in_words
from tests.tuning.conftest import trial_of


@pytest.mark.parametrize(
    ("objective", "best", "column"),
    [
        (Objective(), "100 steps/s", ">steps/s"),
        (Objective(unit="images/s", is_throughput=False), "100 images/s", ">images/s"),
        (Objective(unit="ms", better="lower", is_throughput=False), "0.01 ms", ">1/ms"),
    ],
)
def test_rates_are_in_the_unit_of_the_objective(objective, best, column, make_study, problem) -> None:
    with make_study("proven") as study:
        trials = study.trials()
    summary, verified, searched = sections(trials, candidates=5, objective=objective)
    assert dict(summary.rows)["best"] == best
    assert column in verified.columns and column in searched.columns


@pytest.mark.parametrize(("idle_s", "proxy_s"), [(0.0, 0.0), (4.0, 0.0), (0.0, 8.0), (4.0, 8.0)])
def test_what_was_spent_adds_up_and_every_use_is_named(idle_s, proxy_s, problem) -> None:
    spent = Spending(cluster=problem.cluster, limits=problem.limits, startup_s=12.0, steps_s=24.0, idle_s=idle_s, proxy_s=proxy_s)
    *uses, (all_of_it, _, _, share) = spent_rows(spent)
    assert (all_of_it, share) == ("all", "100%") and spent.seconds == pytest.approx(36.0 + idle_s + proxy_s)
    assert sum(int(share.removesuffix("%")) for *_, share in uses) == pytest.approx(100, abs=2)
    assert all(f"% {name}" in spent_in_words(spent) or f"%) {name}" in spent_in_words(spent) for name, *_ in uses)
    assert len(uses) == 2 + (idle_s > 0) + (proxy_s > 0)


def test_two_trials_of_one_speed_tie_in_95_of_100_studies(problem) -> None:
    """They differ by TRIAL_STDDEV, however many steps they take; 400 studies leave three standard deviations."""
    configuration, rates = problem.candidates().configuration(0), np.random.default_rng(0).lognormal(0, TRIAL_STDDEV, (400, 2))
    pairs = [[trial_of(number, configuration, rate) for number, rate in enumerate(pair)] for pair in rates.tolist()]
    assert np.mean([len(tied(pair)) == 2 for pair in pairs]) == pytest.approx(0.95, abs=0.035)
