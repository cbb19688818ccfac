"""Several batches: a step is a fixed time and a time per micro-batch, and beliefs in many candidates at once."""

import math

import pytest
import torch

from oppa.cost.coefficients import load_beliefs
from oppa.cost.facts import workload_of
from oppa.cost.hardware import hardware_of
from oppa.cost.step_time import step_time
from oppa.problem.batches import over
from oppa.tuning.designer import groups
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.processes import LAYOUT
from oppa.tuning.surrogate.batch_scaling import SPREAD, TwoParts, doubled
from oppa.tuning.surrogate.cost_model import CostModel
from tests.tuning.conftest import measured


@pytest.fixture(scope="module")
def several(problem):
    return over(problem, (16, 32, 64))


@pytest.fixture(scope="module")
def parts(several):
    candidates = several.candidates()
    beliefs, work = load_beliefs("step_time", hardware_of(several.cluster).coefficients), workload_of(several, candidates)
    plain, twice = (CostModel(step_time, each, beliefs, sign=-1.0) for each in (work, doubled(work)))
    return plain, TwoParts(plain, twice, torch.from_numpy(groups(candidates, LAYOUT))), candidates


def shift_of(parts, number: int, shift: float) -> torch.Tensor:
    plain, both, _ = parts
    values = torch.zeros(len(both.names), dtype=torch.float64)
    values[len(plain.names) + number] = shift
    return values


def test_without_factors_it_is_the_cost_model(parts) -> None:
    plain, both, _ = parts
    nothing = torch.zeros(len(plain.names), dtype=torch.float64)
    assert torch.equal(both.at(torch.zeros(len(both.names), dtype=torch.float64)), plain.at(nothing))


def test_a_factor_lengthens_the_fixed_time_of_its_layout_alone(parts) -> None:
    _, both, candidates = parts
    layouts, doubling = groups(candidates, LAYOUT), math.log(2) / SPREAD
    before, after = ((-both.at(shift_of(parts, 3, shift))).exp() for shift in (0.0, doubling))
    share = both.prior_share()
    assert torch.allclose(after, before * torch.where(torch.from_numpy(layouts == 3), 1 + share, 1.0))


def test_the_fixed_share_falls_with_the_batch(parts) -> None:
    _, both, candidates = parts
    share = both.prior_share().tolist()
    by_configuration = {each: share[index] for index, each in enumerate(candidates)}
    for each, value in by_configuration.items():
        larger = [other for other in by_configuration if other.id == each.id and other.global_batch > each.global_batch]
        assert 0 <= value <= 1 and all(by_configuration[other] < value for other in larger)


def test_slopes_are_finite_differences(parts) -> None:
    plain, both, _ = parts
    at = shift_of(parts, 1, 0.4)
    value, slopes = both.linearised(at)
    assert torch.allclose(value, both.at(at))
    for number in (1, 2):
        moved = at + 1e-6 * shift_of(parts, number, 1.0)
        assert torch.allclose(slopes[:, len(plain.names) + number], (both.at(moved) - value) / 1e-6, atol=1e-5)


def test_two_batches_of_a_layout_foretell_a_third(several) -> None:
    """The truth: one layout's exchange takes three times as long as the cost model has it."""
    candidates = several.candidates()
    surrogate = Oppa(several, candidates, seed=0)
    truth = surrogate.log_rate.cost.at(torch.zeros(len(surrogate.log_rate.cost.names), dtype=torch.float64))
    layout = groups(candidates, LAYOUT)
    own = [index for index in range(len(candidates)) if layout[index] == layout[-1] and candidates.configuration(index).micro_batch == 4]
    share = surrogate.log_rate.points[:, -1]
    slow = truth - (1 + 2 * share).log()
    ordered = sorted(own, key=lambda index: candidates.configuration(index).global_batch)
    small, middle, large = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    before = surrogate.log_rate.of_candidate(middle)
    surrogate.update([measured(index, float(slow[index]), 2**20) for index in (small, large)])
    after = surrogate.log_rate.of_candidate(middle)
    assert abs(float(after.mean - slow[middle])) < 0.05 < abs(float(before.mean - slow[middle]))
    assert after.stddev < before.stddev / 3


def test_a_joint_belief_has_the_marginals_of_each(several) -> None:
    candidates = several.candidates()
    surrogate = Oppa(several, candidates, seed=0)
    rows = torch.arange(0, len(candidates), 5)
    for process in (surrogate.log_rate, surrogate.log_slack):
        assert torch.allclose(process.jointly(rows).covariance.diagonal().sqrt(), process.of_candidates(rows).stddev)
    surrogate.update([measured(index, -0.02 * index, 2**20 * (1 + index)) for index in range(0, 60, 10)])
    for process in (surrogate.log_rate, surrogate.log_slack):
        joint = process.jointly(rows)
        each = [process.of_candidate(int(row)) for row in rows]
        assert torch.allclose(joint.mean, torch.cat([one.mean for one in each]))
        assert torch.allclose(joint.covariance.diagonal().sqrt(), torch.cat([one.stddev for one in each]), atol=1e-5)
        assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-10


def test_neighbours_move_together(several) -> None:
    surrogate = Oppa(several, several.candidates(), seed=0)
    joint = surrogate.log_rate.jointly(torch.arange(0, 40))
    stddev = joint.covariance.diagonal().sqrt()
    assert (joint.covariance / stddev[:, None] / stddev).median() > 0.3
