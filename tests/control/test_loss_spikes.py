"""A rise of the loss beyond its noise is a spike, and a lasting one is a wide spike."""

import json
import random

import pytest

from oppa.control.loss_spikes import WIDE, WINDOW, LossSpikes


def falling(steps: int, *, noise: float = 0.05, seed: int = 0) -> list[float]:
    """A loss as training has it."""
    draws = random.Random(seed)
    return [2 + 3 / (1 + step / 20) + draws.gauss(0, noise) for step in range(steps)]


def found(losses: list[float | None], spikes: LossSpikes | None = None, begin: int = 0) -> list[tuple[int, int]]:
    """Return the steps at which wide spikes were found, and when they began."""
    spikes = spikes or LossSpikes()
    seen = [(step, spikes.wide(step, loss)) for step, loss in enumerate(losses, begin)]
    return [(step, began) for step, began in seen if began is not None]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_spike(seed: int) -> None:
    assert not found(falling(2000, seed=seed))


def test_a_narrow_spike_passes_by_itself() -> None:
    losses = falling(400)
    losses[200 : 200 + WIDE - 1] = [8.0] * (WIDE - 1)
    assert not found(losses)


def test_a_wide_spike_is_reported_once_with_its_beginning() -> None:
    losses = falling(400)
    losses[200:240] = [8.0] * 40
    assert found(losses) == [(200 + WIDE - 1, 200)]


def test_what_is_not_finite_is_high_even_at_the_beginning() -> None:
    assert found([None] * WIDE) == [(WIDE - 1, 0)]
    assert found([*falling(100), *[float("inf")] * WIDE]) == [(100 + WIDE - 1, 100)]


def test_the_next_spike_begins_from_calm() -> None:
    losses = falling(400)
    losses[100:120], losses[200:220] = [8.0] * 20, [8.0] * 20
    assert [began for _, began in found(losses)] == [100, 200]


def test_what_stays_high_becomes_usual() -> None:
    risen = [*falling(200), *[each + 3 for each in falling(300)]]
    assert [began for _, began in found(risen)] == [200]
    again = 200 + WINDOW + 100
    risen[again : again + 20] = [12.0] * 20
    assert [began for _, began in found(risen)] == [200, again]


@pytest.mark.parametrize(("crashed", "resumed"), [(300, 0), (600, 50), (1200, 600), (640, 600)])
def test_a_run_that_resumes_an_earlier_checkpoint_is_in_no_spike(crashed: int, resumed: int) -> None:
    losses = [2 + 8 / (1 + step / 50) + each for step, each in enumerate(falling(crashed, noise=0.02))]
    before, after = LossSpikes(), LossSpikes()
    assert not found(losses, before)
    after.restore(json.loads(json.dumps(before.snapshot())))
    again = losses[resumed : resumed + 30]
    assert not found([*again, *losses[resumed + 30 :]], after, resumed)
    assert found([*again, *[50.0] * WIDE], before, resumed) == [(resumed + 30 + WIDE - 1, resumed + 30)], "a spike after it is one"


def test_a_spike_that_was_left_by_a_resume_has_ended() -> None:
    spikes = LossSpikes()
    assert found([*falling(200), *[8.0] * WIDE], spikes) and spikes.is_wide
    assert not found(falling(200)[150:], spikes, 150) and not spikes.is_wide
