"""The baselines on our own cost model are its ranking, and forests on its error."""

import dataclasses

import numpy as np
import pytest

from experiments.baselines.cost_predictions import cost_predictions
from oppa.errors import InputError
from oppa.tuning.designers import default_stopping, make_designer
from oppa.tuning.designers.oppa import Oppa
from tests.tuning.conftest import failed, measured, run_designer

FORESTS = ("forest-physics", "xgboost-physics", "smac-physics")


def untroubled(designer) -> list[int]:
    order: list[int] = []
    while (index := designer.suggest(set(order))) is not None:
        order.append(index)
    return order


@pytest.fixture(scope="module")
def tight(make_problem):
    """A problem in which some candidates are predicted not to fit."""
    problem = make_problem(("100 MiB", "45 MiB"))
    return problem, problem.candidates()


def test_oppa_begins_with_the_first_of_the_ranking(tight) -> None:
    ours, ranking = (make_designer(name, *tight, seed=0) for name in ("oppa", "prior-rank"))
    assert ours.suggest(set()) == ranking.suggest(set())


def test_the_predictions_are_those_of_oppa_before_any_trial(tight) -> None:
    predicted, ours = cost_predictions(*tight), Oppa(*tight, seed=0)
    rate, slack = ours.log_rate.at(slice(None)), ours.log_slack.at(slice(None))
    assert np.allclose(predicted.rate, rate.mean) and np.allclose(predicted.slack.mean, slack.mean)
    assert np.allclose(predicted.slack.stddev, slack.stddev, rtol=0.02)


def test_the_ranking_learns_nothing(make, landscape, candidates) -> None:
    order = run_designer(make("prior-rank"), landscape, len(candidates))
    assert order == untroubled(make("prior-rank", seed=1)) and sorted(order) == list(range(len(candidates)))


@pytest.mark.parametrize("name", ["prior-rank", *FORESTS])
def test_what_the_cost_model_says_nothing_about_is_refused(name, problem, candidates) -> None:
    other = dataclasses.replace(problem, stated_model=None)
    with pytest.raises(InputError, match="cost model"):
        make_designer(name, other, candidates, seed=0)


@pytest.mark.parametrize("name", FORESTS)
class TestForests:
    """Checks every forest by one suite."""

    @pytest.mark.slow
    def test_before_any_observation_the_cost_model_ranks(self, name, make) -> None:
        assert untroubled(make(name))[:8] == untroubled(make("prior-rank"))[:8]

    @pytest.mark.slow
    def test_the_seed_alone_decides(self, name, make, landscape) -> None:
        assert run_designer(make(name), landscape, 7) == run_designer(make(name), landscape, 7)

    def test_what_is_predicted_to_fit_comes_first(self, name, tight) -> None:
        slack = cost_predictions(*tight).slack.mean.numpy()
        order = untroubled(make_designer(name, *tight, seed=0))
        assert (slack > 0).any() and (slack[order[:3]] <= 0).all() and slack[order[-3:]].min() > slack[order[:3]].max()

    def test_memory_that_is_measured_opens_what_was_predicted_not_to_fit(self, name, tight) -> None:
        slack = cost_predictions(*tight).slack.mean.numpy()
        fitting, over = np.flatnonzero(slack <= 0).tolist(), set(np.flatnonzero(slack > 0).tolist())
        designer = make_designer(name, *tight, seed=0)
        designer.update([measured(index, -1.0, 2**20) for index in fitting[:-1]])  # far less than predicted
        assert designer.suggest(set(fitting[:-1])) in over

    @pytest.mark.slow
    def test_what_needs_as_much_as_a_trial_that_ran_out_of_memory_is_never_tried(self, name, make, candidates) -> None:
        designer, micro_batch = make(name), candidates.column("micro_batch")
        first = int(np.flatnonzero(micro_batch == 2)[0])
        designer.update([failed(first, "out_of_memory")])
        left = untroubled(designer)
        assert len(left) < len(candidates) - 1 and len(set(left)) == len(left) and first not in left

    def test_a_measurement_moves_the_choice(self, name, make, candidates) -> None:
        start = untroubled(make("prior-rank"))[:: len(candidates) // 4][:4]  # unlike ones: the first of the ranking differ in little

        def after(rate: float) -> int:
            designer = make(name)
            designer.update([measured(index, -1.0, 2**20) for index in start[:3]] + [measured(start[3], rate, 2**20)])
            return designer.suggest(set(start))

        assert after(3.0) != after(-9.0)

    def test_trials_end_early_as_oppa_s_do(self, name) -> None:
        assert default_stopping(name) == default_stopping("oppa")
