"""An outlier is distinguished from an effect that its neighbours share, and does not mislead."""

import pytest
import torch

from oppa.tuning.surrogate.outliers import own_variance

NOISE = 0.05
X = torch.linspace(0, 1, 12, dtype=torch.float64)
PRIOR = torch.exp(-0.5 * ((X[:, None] - X) / 0.3).square()) * 0.3**2
CENTRE = torch.zeros(12, dtype=torch.float64)
ROOM = torch.full((12,), NOISE**2, dtype=torch.float64)


def posterior_mean(target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The posterior mean."""
    return PRIOR @ torch.linalg.solve(PRIOR + torch.diag(noise), target)


def left_out(target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return how many deviations each lies from its leave-one-out prediction."""
    distances = []
    for i in range(len(target)):
        others = torch.arange(len(target)) != i
        weights = torch.linalg.solve(PRIOR[others][:, others] + torch.diag(noise[others]), PRIOR[others, i])
        variance = PRIOR[i, i] - weights @ PRIOR[others, i] + noise[i]
        distances.append((target[i] - weights @ target[others]) / variance.sqrt())
    return torch.stack(distances)


@pytest.fixture
def usual() -> torch.Tensor:
    """Return a draw of the process without outliers."""
    g = torch.Generator().manual_seed(0)
    draw = torch.linalg.cholesky(PRIOR + torch.diag(ROOM)) @ torch.randn(12, generator=g, dtype=torch.float64)
    assert left_out(draw, ROOM).abs().max() < 3
    return draw


def test_what_is_usual_has_hardly_a_variance_of_its_own(usual) -> None:
    own = own_variance(PRIOR, CENTRE, usual, ROOM)
    assert (own >= 0).all() and own.median() == 0 and (own < 2 * ROOM).all()


@pytest.mark.parametrize("places", [(4,), (4, 8), (4, 5)])
def test_an_outlier_does_not_change_its_neighbours(places, usual) -> None:
    stalled = usual.clone()
    stalled[list(places)] -= 2.5
    own = own_variance(PRIOR, CENTRE, stalled, ROOM)
    rest = [i for i in range(12) if i not in places]
    assert own[list(places)].min() > 100 * own[rest].max()
    misled, kept = ((posterior_mean(stalled, noise) - posterior_mean(usual, ROOM))[rest].abs().max() for noise in (ROOM, ROOM + own))
    assert kept < 0.25 * misled


def test_a_prior_that_is_off_is_corrected_and_makes_no_outliers() -> None:
    vague = PRIOR + 1.0  # a common offset of either sign
    own = own_variance(vague, CENTRE, CENTRE - 1.5, ROOM)
    assert (own < ROOM).all()


def test_a_slow_first_run_teaches_less_where_runs_stall() -> None:
    prior, centre, target = torch.tensor([[0.1]]).double(), torch.zeros(1).double(), torch.tensor([-1.5]).double()
    learned = []
    for noise in (0.05, 0.2, 0.4):
        room = torch.tensor([noise**2]).double()
        learned.append(float(prior / (prior + room + own_variance(prior, centre, target, room))))
    assert learned[0] > 0.9 and learned[1] < 0.5 and learned[2] < learned[1]
