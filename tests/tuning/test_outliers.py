"""What is odd in itself is told from what tells of its neighbours, and does not mislead."""

import pytest
import torch

from oppa.tuning.surrogate.outliers import FEWEST, ODD, own_variance

NOISE = 0.05
X = torch.linspace(0, 1, 12, dtype=torch.float64)
PRIOR = torch.exp(-0.5 * ((X[:, None] - X) / 0.3).square()) * 0.3**2
CENTRE = torch.zeros(12, dtype=torch.float64)
ROOM = torch.full((12,), NOISE**2, dtype=torch.float64)


def believed(target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The posterior mean."""
    return PRIOR @ torch.linalg.solve(PRIOR + torch.diag(noise), target)


def left_out(target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """How many deviations each lies from what all others tell, one by one."""
    distances = []
    for i in range(len(target)):
        others = torch.arange(len(target)) != i
        weights = torch.linalg.solve(PRIOR[others][:, others] + torch.diag(noise[others]), PRIOR[others, i])
        variance = PRIOR[i, i] - weights @ PRIOR[others, i] + noise[i]
        distances.append((target[i] - weights @ target[others]) / variance.sqrt())
    return torch.stack(distances)


@pytest.fixture
def usual() -> torch.Tensor:
    """What the process itself would show."""
    g = torch.Generator().manual_seed(0)
    draw = torch.linalg.cholesky(PRIOR + torch.diag(ROOM)) @ torch.randn(12, generator=g, dtype=torch.float64)
    assert left_out(draw, ROOM).abs().max() < ODD
    return draw


def test_what_is_usual_has_no_variance_of_its_own(usual) -> None:
    assert (own_variance(PRIOR, CENTRE, usual, ROOM) == 0).all()


@pytest.mark.parametrize("places", [(4,), (4, 8), (4, 5)])
def test_what_is_odd_ends_at_the_limit_and_leaves_its_neighbours_alone(places, usual) -> None:
    stalled = usual.clone()
    stalled[list(places)] -= 2.5
    own = own_variance(PRIOR, CENTRE, stalled, ROOM)
    assert set(own.nonzero()[:, 0].tolist()) == set(places)
    torch.testing.assert_close(
        left_out(stalled, ROOM + own)[list(places)].abs(), torch.full((len(places),), ODD).double(), rtol=0.02, atol=0
    )
    rest = [i for i in range(12) if i not in places]
    misled, kept = ((believed(stalled, noise) - believed(usual, ROOM))[rest].abs().max() for noise in (ROOM, ROOM + own))
    assert kept < 0.25 * misled


def test_two_cannot_be_told_from_a_prior_that_is_off() -> None:
    few = slice(FEWEST - 1)
    assert (own_variance(PRIOR[few, few], CENTRE[few], CENTRE[few] - 2.5, ROOM[few]) == 0).all()
