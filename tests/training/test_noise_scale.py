"""Signal and noise are found without bias, however micro-batches are cut; and an estimate that cannot be believed says so."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.random_streams import stream
from oppa.training.statistics.noise_scale import Health, NoiseScale, NoiseScaleEstimate, Norms, Smoothing, estimate_of, paper_estimate

POSITIVE = st.floats(1e-3, 1e3)
SIZES = st.lists(st.integers(1, 4096), min_size=2, max_size=20)


def expected_norms(signal: float, noise: float, sizes: list[int], weights: list[float]) -> Norms:
    """Return the expected values of both norms, with their sizes."""
    shares = [weight / sum(weights) for weight in weights]
    inverse_small = sum(share / size for share, size in zip(shares, sizes, strict=True))
    inverse_big = sum(share**2 / size for share, size in zip(shares, sizes, strict=True))
    return Norms(
        small=signal + noise * inverse_small,
        big=signal + noise * inverse_big,
        small_tokens=1 / inverse_small,
        big_tokens=1 / inverse_big,
    )


@given(POSITIVE, POSITIVE, SIZES, st.booleans())
def test_expected_norms_give_the_signal_and_noise_that_made_them(signal: float, noise: float, sizes: list[int], by_tokens: bool) -> None:
    found = estimate_of([expected_norms(signal, noise, sizes, list(map(float, sizes)) if by_tokens else [1.0] * len(sizes))])
    assert found is not None
    # Rounding alone, of norms that may be 1e9 times what is looked for.
    scale = 1e-9 * (signal + noise)
    assert found.signal == pytest.approx(signal, abs=scale)
    assert found.noise == pytest.approx(noise, abs=scale * max(sizes))


@given(POSITIVE, POSITIVE, st.integers(2, 64), st.integers(1, 4096))
def test_equal_micro_batches_are_the_papers(small: float, big: float, count: int, tokens: int) -> None:
    mine = estimate_of([Norms(small=small, big=big, small_tokens=tokens, big_tokens=count * tokens)])
    paper = paper_estimate([small] * count, big, count * tokens)
    assert mine is not None and paper is not None
    assert (mine.signal, mine.noise) == pytest.approx((paper.signal, paper.noise), rel=1e-9, abs=1e-9 * (small + big) * count * tokens)


@given(POSITIVE, POSITIVE, SIZES, SIZES)
def test_groups_of_parameters_add_up(signal: float, noise: float, some: list[int], others: list[int]) -> None:
    groups = [expected_norms(signal, noise, sizes, list(map(float, sizes))) for sizes in (some, others)]
    one, other, both = estimate_of(groups[:1]), estimate_of(groups[1:]), estimate_of(groups)
    assert one is not None and other is not None
    assert both == NoiseScaleEstimate(signal=one.signal + other.signal, noise=one.noise + other.noise)


def test_a_single_micro_batch_says_nothing() -> None:
    alone = Norms(small=2.0, big=2.0, small_tokens=64, big_tokens=64)
    some = Norms(small=2.0, big=1.0, small_tokens=64, big_tokens=128)
    assert estimate_of([alone]) is None and paper_estimate([2.0], 2.0, 64) is None
    assert estimate_of([alone, some]) == estimate_of([some])


CUTS = [[8, 8, 8, 8], [8, 8, 8, 2], [1, 31], [32, 1, 1]]


def planted(sizes: list[int], steps: int, *, by_tokens: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each step's estimates (mine, and the paper's) of signal 1 and noise 40, from 64 coordinates."""
    random, mine, paper = stream(0, f"planted {sizes}"), [], []
    weights = np.array(sizes) if by_tokens else np.ones(len(sizes))
    for _ in range(steps):
        each = np.full((len(sizes), 64), 1 / 8) + random.normal(size=(len(sizes), 64)) * np.sqrt(40 / 64 / np.array(sizes))[:, None]
        squares, mean = (each**2).sum(1), weights @ each / weights.sum()
        known = expected_norms(0.0, 0.0, sizes, list(weights))
        shares = weights / weights.sum()
        norms = Norms(small=float(shares @ squares), big=float(mean @ mean), small_tokens=known.small_tokens, big_tokens=known.big_tokens)
        found, as_written = estimate_of([norms]), paper_estimate(list(squares), float(mean @ mean), sum(sizes))
        assert found is not None and as_written is not None
        mine.append((found.signal, found.noise))
        paper.append((as_written.signal, as_written.noise))
    return np.array(mine), np.array(paper)


def is_unbiased(estimates: np.ndarray) -> bool:
    """Return True if chance explains the distance of their mean from the planted value: 4 standard errors."""
    errors = np.abs(estimates.mean(0) - (1.0, 40.0))
    return bool((errors < 4 * estimates.std(0) / len(estimates) ** 0.5).all())


@pytest.mark.parametrize("sizes", CUTS, ids=str)
@pytest.mark.parametrize("by_tokens", [True, False])
def test_planted_noise_is_found_without_bias(sizes: list[int], by_tokens: bool) -> None:
    assert is_unbiased(planted(sizes, 2000, by_tokens=by_tokens)[0])


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_the_paper_as_written_is_biased_unless_micro_batches_are_equal(sizes: list[int]) -> None:
    assert is_unbiased(planted(sizes, 2000, by_tokens=True)[1]) == (len(set(sizes)) == 1)


@pytest.mark.parametrize("directions", [1, 16])
def test_enough_micro_batches_have_a_quarter_of_the_noise_as_error_which_directions_share(directions: int) -> None:
    others, random = Smoothing().enough_samples, stream(0, f"{directions} directions")
    each = random.normal(size=(2000, others, 2, directions)) * directions**-0.5  # `others` steps of two micro-batches
    found = ((each**2).sum(3).mean(2) - (each.mean(2) ** 2).sum(2)).mean(1) * 2
    assert found.mean() == pytest.approx(1.0, rel=0.02) and found.std() == pytest.approx(0.25 * directions**-0.5, rel=0.1)


ESTIMATES = st.lists(
    st.tuples(POSITIVE, POSITIVE).map(lambda pair: NoiseScaleEstimate(signal=pair[0], noise=pair[1])), min_size=1, max_size=30
)


def after(estimates: list[NoiseScaleEstimate | None], smoothing: Smoothing = Smoothing(), *, tokens: float = 1e6) -> NoiseScale:  # noqa: B008 - frozen
    scale = NoiseScale(smoothing=smoothing)
    for estimate in estimates:
        scale = scale.after(estimate, tokens=tokens, micro_batches=9)
    return scale


@given(ESTIMATES)
def test_averages_have_no_bias_from_their_start(estimates: list[NoiseScaleEstimate]) -> None:
    scale = after(list(estimates))
    low, high = min(one.signal for one in estimates), max(one.signal for one in estimates)
    assert low * (1 - 1e-9) <= scale.signal <= high * (1 + 1e-9)
    # The start's bias is the same in both averages: their ratio, as the paper has it, is right as it is.
    assert scale.noise / scale.signal == pytest.approx(scale.noise_average / scale.signal_average)


def test_a_constant_is_its_own_average_and_calibration_multiplies_the_noise() -> None:
    scale = after([NoiseScaleEstimate(signal=2.0, noise=300.0)] * 5)
    assert (scale.signal, scale.noise, scale.tokens_per_batch) == pytest.approx((2.0, 300.0, 2 * 150.0))


def test_averages_are_slower_after_the_warm_up() -> None:
    ones, then = [NoiseScaleEstimate(signal=1.0, noise=1.0)] * 2, NoiseScaleEstimate(signal=2.0, noise=1.0)
    smoothing = Smoothing(warming=0.5, steady=0.9, warmup_tokens=3e6, share=math.inf)
    kept = after([*ones, then, then], smoothing)
    weights = np.array([0.5 * 0.5 * 0.5 * 0.9, 0.5 * 0.5 * 0.9, 0.5 * 0.9, 0.1])
    assert kept.signal == pytest.approx(weights @ (1, 1, 2, 2) / weights.sum())


@pytest.mark.parametrize(
    ("tokens", "total", "kept"),
    [
        (1e4, 4e6, 0.95),  # warming up
        (1e4, 1e7, 0.99),  # a step is a 200th of a fifth of all
        (1e5, 1e7, 0.95),  # a 20th
        (5e4, 1e7, 0.975),  # a 40th
        (1e7, 2e7, 0.95),  # more than a fifth of all; and yet over some steps
        (1e5, 1e9, 0.99),
    ],
)
def test_averages_reach_back_over_a_share_of_what_was_trained(tokens: float, total: float, kept: float) -> None:
    assert Smoothing().keeps(tokens, total) == pytest.approx(kept)
    assert Smoothing(share=math.inf).keeps(tokens, total) == (0.95 if total <= 8e6 else 0.99)


def test_the_noise_scale_follows_batches_that_grow_late() -> None:
    """100 steps of a larger batch may be most of a run: an average over them would still tell of what has long passed."""
    seen = [NoiseScaleEstimate(signal=1.0, noise=float(step)) for step in range(1, 301)]
    short, long = (after(list(seen), Smoothing(warmup_tokens=0.0, share=share)) for share in (0.2, math.inf))
    assert 240 < short.noise / short.signal < 300 and long.noise / long.signal < 0.9 * short.noise / short.signal


GOOD, NOT_A_NUMBER = NoiseScaleEstimate(signal=1.0, noise=10.0), NoiseScaleEstimate(signal=math.nan, noise=1.0)


@pytest.mark.parametrize(
    ("estimates", "health"),
    [
        ([], Health.TOO_FEW_SAMPLES),
        ([None] * 50, Health.TOO_FEW_SAMPLES),
        ([GOOD] * 3, Health.TOO_FEW_SAMPLES),
        ([GOOD] * 4, Health.HEALTHY),
        ([*[GOOD] * 9, NOT_A_NUMBER], Health.NOT_FINITE),
        ([*[GOOD] * 9, NOT_A_NUMBER, GOOD], Health.HEALTHY),
        ([NoiseScaleEstimate(signal=-1.0, noise=10.0)] * 9, Health.NO_SIGNAL),
        ([NoiseScaleEstimate(signal=1.0, noise=-1e-9)] * 9, Health.NO_NOISE),
    ],
)
def test_an_unreliable_estimate_is_marked_as_such(estimates: list[NoiseScaleEstimate | None], health: Health) -> None:
    scale = after(estimates)
    assert scale.health is health
    assert math.isfinite(scale.tokens_per_batch) or health is not Health.HEALTHY


@pytest.mark.parametrize("keep", [0.9, 0.99])
def test_the_error_of_the_signal_is_that_of_a_weighted_mean(keep: float) -> None:
    random, smoothing = stream(0, "signals"), Smoothing(warming=keep)
    signals = random.normal(1.0, 2.0, size=(1000, 60))
    runs = [after([NoiseScaleEstimate(signal=float(each), noise=1.0) for each in own], smoothing, tokens=1.0) for own in signals]
    stated = np.sqrt(np.mean([run.signal_error**2 for run in runs]))
    assert stated == pytest.approx(np.std([run.signal for run in runs]), rel=0.1)


def test_a_signal_that_noise_explains_is_none() -> None:
    """The mean of |G|^2 is positive in half of the runs without a gradient; it is above its standard error in a sixth."""
    signals = stream(0, "no gradient").normal(size=(1000, 60))
    runs = [after([NoiseScaleEstimate(signal=float(each), noise=1.0) for each in own]) for own in signals]
    assert np.mean([run.health is Health.HEALTHY for run in runs]) == pytest.approx(0.16, abs=0.04)
    assert np.mean([run.signal > 0 for run in runs]) == pytest.approx(0.5, abs=0.05)


def test_a_step_that_is_not_finite_leaves_the_averages_alone() -> None:
    before, behind = after([GOOD] * 9), after([*[GOOD] * 9, NOT_A_NUMBER])
    assert behind.tokens_per_batch == before.tokens_per_batch and behind.tokens > before.tokens
