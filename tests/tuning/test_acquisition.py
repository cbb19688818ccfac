"""Laws of the constrained upper confidence bound (OPPA eq. 4)."""

import torch

from oppa.tuning.acquisition import constrained_ucb
from oppa.tuning.belief import Normal


def normal(mean: list[float], stddev: list[float]) -> Normal:
    return Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(stddev, dtype=torch.float64))


ROOMY = normal([-3.0], [0.01])


def test_without_a_binding_memory_it_is_the_analytic_bound() -> None:
    # A log-normal with a small stddev is nearly normal with relative stddev 0.05; QMC with 256 samples is good to 1%.
    value = constrained_ucb(normal([0.0], [0.05]), ROOMY, beta=2.0)
    torch.testing.assert_close(value, torch.tensor([1.0 + 2.0 * 0.05], dtype=torch.float64), rtol=0.01, atol=0)


def test_more_uncertainty_promises_more() -> None:
    values = constrained_ucb(normal([0.0, 0.0, 0.0], [0.1, 0.2, 0.4]), normal([-3.0] * 3, [0.01] * 3))
    assert values[0] < values[1] < values[2]


def test_what_cannot_fit_is_worth_nothing_however_fast() -> None:
    fast, slow = constrained_ucb(normal([5.0, 0.0], [0.1, 0.1]), normal([1.0, -1.0], [0.01, 0.01]))
    assert fast < 1e-6 < slow


def test_infeasible_points_gain_nothing_where_the_log_throughput_is_negative() -> None:
    feasible, infeasible = constrained_ucb(normal([-4.0, -4.0], [0.1, 0.1]), normal([-1.0, 1.0], [0.01, 0.01]))
    assert infeasible < feasible


def test_the_order_does_not_depend_on_the_unit_of_the_throughput() -> None:
    means, deviations, slack = [0.0, 0.3, -0.2], [0.3, 0.1, 0.6], normal([-0.1, 0.0, -0.5], [0.1, 0.1, 0.1])
    here = constrained_ucb(normal(means, deviations), slack)
    there = constrained_ucb(normal([mean + 30.0 for mean in means], deviations), slack)
    torch.testing.assert_close(here, there)
