"""Laws of the comparison between the winner and the default."""

import math

import pytest
from scipy.stats import ttest_ind

from oppa.tuning.verification import speed_up

WINNER, DEFAULT = [2.02, 1.98, 2.01], [1.00, 1.03, 0.98]


def test_the_gain_is_the_ratio_of_geometric_means() -> None:
    compared = speed_up(WINNER, DEFAULT)
    assert compared.ratio.value == pytest.approx((math.prod(WINNER) / math.prod(DEFAULT)) ** (1 / 3))
    assert compared.ratio.low < compared.ratio.value < compared.ratio.high


def test_the_interval_of_the_gain_is_welchs() -> None:
    logs = [[math.log(rate) for rate in rates] for rates in (WINNER, DEFAULT)]
    reference = ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    compared = speed_up(WINNER, DEFAULT)
    assert (compared.ratio.low, compared.ratio.high) == pytest.approx((math.exp(reference.low), math.exp(reference.high)))


def test_exchanging_the_two_inverts_the_gain() -> None:
    there, back = speed_up(WINNER, DEFAULT).ratio, speed_up(DEFAULT, WINNER).ratio
    assert (there.low, there.value, there.high) == pytest.approx((1 / back.high, 1 / back.value, 1 / back.low))


def test_far_apart_is_not_tied_and_close_together_is() -> None:
    assert not speed_up(WINNER, DEFAULT).tied
    assert speed_up([1.0, 1.1, 1.05], [1.02, 1.08, 1.0]).tied


def test_exact_repeats_have_an_exact_gain() -> None:
    compared = speed_up([2.0, 2.0], [1.0, 1.0])
    assert compared.ratio.low == pytest.approx(2.0) == compared.ratio.high
    assert not compared.tied
