"""The comparison of the winner with the default obeys its laws."""

import math
import random
from statistics import fmean, variance

import pytest
from scipy.stats import t

from oppa.tuning.verification import Interval, SpeedUp, speed_up

WINNER, DEFAULT = [2.02, 1.98, 2.01], [1.00, 1.03, 0.98]
ONE = Interval(value=1.0, low=1.0, high=1.0)


def test_the_gain_is_the_ratio_of_geometric_means() -> None:
    compared = speed_up(WINNER, DEFAULT)
    assert compared.ratio.value == pytest.approx((math.prod(WINNER) / math.prod(DEFAULT)) ** (1 / 3))
    assert compared.ratio.low < compared.ratio.value < compared.ratio.high


def around(mean: float, standard_error: float, freedom: float) -> list[float]:
    """Student's 95% interval in closed form, as factors: low, mean, high."""
    half = float(t.ppf(0.975, freedom)) * standard_error
    return [math.exp(mean - half), math.exp(mean), math.exp(mean + half)]


@pytest.mark.parametrize("seed", range(20))
def test_the_intervals_are_students_and_that_of_the_gain_is_welchs(seed: int) -> None:
    draw = random.Random(seed)
    rates = [[center * math.exp(draw.gauss(0, spread)) for _ in range(draw.randint(2, 8))] for center, spread in ((2, 0.05), (1, 0.2))]
    compared, logs = speed_up(*rates), [[math.log(rate) for rate in each] for each in rates]
    means, errors = [fmean(each) for each in logs], [variance(each) / len(each) for each in logs]
    freedom = sum(errors) ** 2 / sum(error**2 / (len(each) - 1) for error, each in zip(errors, logs, strict=True))  # Welch-Satterthwaite
    expected = [around(mean, math.sqrt(error), len(each) - 1) for mean, error, each in zip(means, errors, logs, strict=True)]
    expected.append(around(means[0] - means[1], math.sqrt(sum(errors)), freedom))
    for found, reference in zip((compared.winner, compared.other, compared.ratio), expected, strict=True):
        assert [found.low, found.value, found.high] == pytest.approx(reference, rel=1e-12)


def test_exchanging_the_two_inverts_the_gain() -> None:
    there, back = speed_up(WINNER, DEFAULT).ratio, speed_up(DEFAULT, WINNER).ratio
    assert (there.low, there.value, there.high) == pytest.approx((1 / back.high, 1 / back.value, 1 / back.low))


def test_far_apart_is_not_tied_and_close_together_is() -> None:
    assert not speed_up(WINNER, DEFAULT).tied
    assert speed_up([1.0, 1.1, 1.05], [1.02, 1.08, 1.0]).tied


def test_the_verdict_is_that_of_the_printed_interval() -> None:
    compared = speed_up([1.05, 1.08, 1.11], [1.00, 1.00, 1.03])
    assert compared.winner.low < compared.other.high and compared.ratio.low > 1, "each one's own interval says less than that of the ratio"
    assert not compared.tied
    for seed in range(20):
        draw = random.Random(seed)
        compared = speed_up(*([1 + draw.random() / 5 for _ in range(3)] for _ in range(2)))
        assert compared.tied == (compared.ratio.low <= 1 <= compared.ratio.high) == str(compared).endswith("tied")


def test_a_speed_up_is_printed_with_its_interval() -> None:
    compared = SpeedUp(winner=ONE, other=ONE, ratio=Interval(value=1.268, low=1.2249, high=1.33))
    assert str(compared) == "1.27x [1.22, 1.33]" and str(compared.ratio) == "1.268 [1.225, 1.33]"
    assert str(SpeedUp(winner=ONE, other=ONE, ratio=ONE)) == "1.00x [1.00, 1.00], tied"


def test_exact_repeats_have_an_exact_gain() -> None:
    compared = speed_up([2.0, 2.0], [1.0, 1.0])
    assert compared.ratio.low == pytest.approx(2.0) == compared.ratio.high
    one_varies = speed_up([2.0, 2.0], [1.0, 1.1])
    assert one_varies.winner.low == pytest.approx(2.0) == one_varies.winner.high
    assert one_varies.ratio.low < one_varies.ratio.value < one_varies.ratio.high
    assert not compared.tied
