"""The reward and the actions are those computed by hand."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.control.decision import HEALTHY
from oppa.control.rl.actions import LEAST, MOST, STEPS, Actions
from oppa.control.rl.reward import Reward, sample_s
from oppa.errors import InputError
from oppa.training.statistics.noise_scale import Norms
from oppa.training.statistics.norm_test import variance_ratio
from tests.control.rl.conftest import state
from tests.control.services import worker

CONSTANTS = {"alpha": 0.1, "beta": 0.2, "delta": 0.3, "eta": 0.4}


def test_as_the_paper_writes_it() -> None:
    reward = Reward(form="paper", **CONSTANTS, adaptive=False)
    first, second = reward.of(state(), least=8, first_sample_s=1.0)
    assert first == pytest.approx(0.5 + 0.1 * 2.0 - 0.2 * 0.3 - 0.3 * (5 - 5))
    assert second == pytest.approx(0.5 - 0.2 * 0.3 - 0.3 * (6 - 5)), "a loss of accuracy costs nothing"
    noisy = Reward(form="paper", **CONSTANTS).of(state(), least=8, first_sample_s=1.0)
    variance = 16 / 96
    assert noisy[0] == pytest.approx(first - 0.4 * (variance + math.sqrt(variance)))


def test_time_by_the_sample_and_the_smallest_batch_as_the_measure() -> None:
    reward = Reward(form="per-sample", **CONSTANTS, adaptive=False)
    first, second = reward.of(state(), least=8, first_sample_s=0.3 / 96 / 2)
    assert first == pytest.approx(0.5 + 0.2 - 0.2 * 2 - 0.3 * 2)
    assert second == pytest.approx(0.5 - 0.2 * 2 - 0.3 * 3)


def test_a_size_by_what_it_costs() -> None:
    reward = Reward(form="goodput", **CONSTANTS, adaptive=False)
    first, second = reward.of(state(), least=8, first_sample_s=0.3 / 96 / 2)
    assert first == pytest.approx(0.5 + 0.2 - 0.2 * math.log(2) - 0.3 * math.log(1 + 96 / 38.4))
    assert second == pytest.approx(first - 0.2), "but for its accuracy the same: they are in it together"
    believed = state(noise_scale=48.0, health=HEALTHY)
    assert reward.of(believed, least=8, first_sample_s=0.3 / 96)[0] == pytest.approx(0.5 + 0.2 - 0.3 * math.log(3))
    doubted = dataclasses.replace(believed, health="no_signal")
    assert reward.of(doubted, least=8, first_sample_s=0.3 / 96)[0] == pytest.approx(
        0.5 + 0.2 - 0.3 * math.log(1 + 96 / 38.4)
    )  # 2 * 16 / (1 - 16 / 96)
    blind = reward.of(state(variance_ratio=None), least=8, first_sample_s=0.3 / 96)
    assert blind[0] == pytest.approx(0.5 + 0.2 - 0.2 - 0.3 * 2), "without a noise scale as by the sample"


@given(noise=st.floats(0.1, 1e5), signal=st.floats(0.01, 100.0), batch=st.integers(8, 4096))
def test_the_cost_of_a_size_is_the_same_when_the_noise_scale_becomes_reliable(noise, signal, batch) -> None:
    """The statistic of one step has the expectation of the noise scale's average, so the reward does not jump."""
    expected = Norms(small=signal + noise / 4, big=signal + noise / batch, small_tokens=4, big_tokens=batch)
    both = (worker(local_batch=batch // 2), worker(local_batch=batch - batch // 2))
    known = state(workers=both, noise_scale=2 * noise / signal, health=HEALTHY, variance_ratio=variance_ratio([expected]))
    unknown = dataclasses.replace(known, health="too_few_samples")
    first, second = (Reward().of(each, least=1, first_sample_s=1e-3) for each in (known, unknown))
    assert first == pytest.approx(second, abs=1e-6)


@given(local_batch=st.integers(1, 31))
def test_as_written_a_batch_below_32_is_paid_for_its_size(local_batch) -> None:
    """The other forms pay none for its size."""
    tiny = state(workers=(worker(local_batch=local_batch), worker(local_batch=32)))
    for form in ("paper", "per-sample", "goodput"):
        with_size, without = (Reward.usual(form, delta=delta).of(tiny, least=1, first_sample_s=1.0)[0] for delta in (0.5, 0.0))
        assert (with_size > without) == (form == "paper")


def test_each_form_has_constants_of_its_own() -> None:
    assert Reward.usual("paper") == Reward(form="paper", alpha=0.1, beta=1.0, delta=0.05, eta=0.05)
    assert Reward.usual("goodput", delta=0.5) == Reward(delta=0.5)
    with pytest.raises(InputError, match="mood"):
        Reward.usual("mood")


def test_seconds_of_a_sample() -> None:
    assert sample_s(state()) == pytest.approx(0.3 / 96)


@pytest.mark.parametrize("change", [{"alpha": -1.0}, {"beta": math.nan}, {"delta": math.inf}])
def test_constants_that_make_no_sense(change) -> None:
    with pytest.raises(InputError):
        Reward(**change)


def test_the_papers_actions() -> None:
    actions = Actions()
    assert (actions.steps, actions.least, actions.most) == ((-100, -25, 0, 25, 100), 32, 1024) == (STEPS, LEAST, MOST)
    assert actions.after([256, 100, 1000, 40], [4, 0, 4, 1]) == (356, 32, 1024, 32)
    assert actions.chosen([256, 100, 1000, 40], [356, 32, 1000, 40]) == [4, 0, 2, 2]
    assert [actions.alike(32, number) for number in range(5)] == [3, 3, 3, 1, 1] and actions.alike(256, 0) == 1
    assert Actions.scaled(256) == actions
    small = Actions.scaled(32)
    assert small.steps == (-12, -3, 0, 3, 12) and (small.least, small.most) == (4, 128)
    assert Actions.from_dict(dataclasses.asdict(small)) == small


@given(local_batch=st.integers(1, 5000))
def test_however_small_a_job_its_actions_differ(local_batch) -> None:
    actions = Actions.scaled(local_batch)
    assert actions.steps[0] <= actions.steps[1] < 0 < actions.steps[3] <= actions.steps[4] and 1 <= actions.least < actions.most
    assert actions.least <= local_batch <= actions.most


@pytest.mark.parametrize("change", [{"steps": (1, 2)}, {"least": 0}, {"least": 10, "most": 10}])
def test_actions_that_make_no_sense(change) -> None:
    with pytest.raises(InputError):
        Actions(**change)
