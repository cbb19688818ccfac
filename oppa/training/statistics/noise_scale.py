"""Estimate the gradient noise scale: the batch in tokens up to which a larger batch learns more per step (McCandlish et al. 2018).

A gradient over b tokens is the true gradient plus noise, whose variance falls with b: E |g|^2 = |G|^2 + tr(Sigma) / b. The squared norms
at two sizes therefore determine both: those of a step's micro-batches and of their mean. If all micro-batches have the same size, this is
Algorithm 1 of COPUS with its factor N - 1.

Notation (N micro-batches in a step, over all replicas; b_n tokens in one of them, B in all):
    w_n            weight in the mean gradient: w_n = a_n / sum of a, with a_n = b_n by default, so that tokens count alike
    small          sum of w_n |g_n|^2, in expectation |G|^2 + tr(Sigma) / small_tokens      1 / small_tokens = sum of w_n / b_n
    big            |sum of w_n g_n|^2, in expectation |G|^2 + tr(Sigma) / big_tokens        1 / big_tokens = sum of w_n^2 / b_n
    signal, noise  |G|^2, and tr(Sigma) of a single token
"""

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

_SAME = 1e-9
"""Relative tolerance below which the two sizes are equal; they then belong to a single micro-batch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Holds the squared norms of a step's gradients at two sizes, in tokens."""

    small: float
    big: float
    small_tokens: float
    big_tokens: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScaleEstimate:
    """Holds a step's unbiased estimate of |G|^2 and tr(Sigma). Either may be negative; only means over many steps are not."""

    signal: float
    noise: float

    @property
    def finite(self) -> bool:
        """Return whether both are finite."""
        return math.isfinite(self.signal) and math.isfinite(self.noise)


def informative(groups: Iterable[Norms]) -> list[Norms]:
    """Return the norms of groups that have more than one micro-batch."""
    return [norms for norms in groups if norms.big_tokens > norms.small_tokens * (1 + _SAME)]


def estimate_of(groups: Iterable[Norms]) -> NoiseScaleEstimate | None:
    """Estimate signal and noise over all groups of parameters (COPUS, Algorithm 1, lines 14 and 15, for micro-batches of any size).

    A group with one micro-batch gives no estimate and is left out of both; the result is None if no group remains.
    """
    known = informative(groups)
    if not known:
        return None
    return NoiseScaleEstimate(
        signal=sum((n.big * n.big_tokens - n.small * n.small_tokens) / (n.big_tokens - n.small_tokens) for n in known),
        noise=sum((n.small - n.big) / (1 / n.small_tokens - 1 / n.big_tokens) for n in known),
    )


def paper_estimate(squared_norms: Sequence[float], mean_squared_norm: float, global_batch: float) -> NoiseScaleEstimate | None:
    """Estimate signal and noise by COPUS, Algorithm 1, lines 9 to 15, as written: all micro-batches count alike, whatever their size.

    Args:
        squared_norms: |g_n|^2 of each micro-batch's mean gradient.
        mean_squared_norm: Squared norm of the gradient that the optimizer gets.
        global_batch: Global batch, in the unit of the resulting noise scale.

    Returns:
        The estimate; None for fewer than two micro-batches.
    """
    count = len(squared_norms)
    if count < 2:
        return None
    mean = sum(squared_norms) / count
    return NoiseScaleEstimate(
        signal=(count * mean_squared_norm - mean) / (count - 1),
        noise=(mean - mean_squared_norm) * global_batch / (count - 1),
    )


class Health(enum.StrEnum):
    """States whether the noise scale is reliable, and the reason if it is not."""

    HEALTHY = "healthy"
    NOT_FINITE = "the last gradients were not finite"
    TOO_FEW_SAMPLES = "too few micro-batches so far; a step needs two or more over all replicas to count"
    NO_SIGNAL = "noise hides the gradient: the mean of |G|^2 is within its standard error; average over more steps or take larger batches"
    NO_NOISE = "micro-batches do not differ: the mean of tr(Sigma) is not positive; draw them independently"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Holds the parameters of the moving averages over steps; averages are longer after the warm-up (COPUS, section 6.1).

    The noise scale grows during training, so a long average lags. The paper's 100 steps are few of 100,000 but a quarter of 400. By
    default, the average therefore spans at most a `share` of all tokens, but always some steps.
    """

    warming: float = 0.95
    """Fraction that an average keeps at each step of the warm-up; its minimum after the warm-up."""
    steady: float = 0.99
    """Largest fraction that an average keeps at each step after the warm-up."""
    warmup_tokens: float = 8e6
    """Tokens of the warm-up (COPUS, section 6.1), in the unit in which steps are counted."""
    share: float = 0.2
    """Share of all tokens so far that the average spans after the warm-up; if infinite, `steady` alone applies (COPUS, section 6.1)."""
    calibration: float = 2.0
    """Factor of tr(Sigma): the noise scale is found at half the critical batch size (COPUS, section 6.1)."""
    enough_samples: int = 32
    """Micro-batches beyond the first of each step that make the estimate reliable: the noise then has a standard error of 25% at most.

    A single direction with all of the noise has that error; it is smaller if several share it. That of |G|^2 is `signal_error`.
    """

    def keeps(self, tokens: float, total: float) -> float:
        """Return the fraction that an average keeps at a step over `tokens`, when `total` tokens were seen."""
        if total <= self.warmup_tokens:
            return self.warming
        return max(self.warming, min(self.steady, 1 - tokens / (self.share * total)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """Estimates the noise scale from the steps so far."""

    smoothing: Smoothing = Smoothing()
    signal_average: float = 0.0
    noise_average: float = 0.0
    """Averages that start at 0, as in the paper: both are too low at first, by the same factor (Algorithm 1, lines 17 and 18)."""
    signal_squares: float = 0.0
    """Average of the squares of the steps' |G|^2, with the same start."""
    weight: float = 0.0
    """Total weight of the estimates in the averages; the rest is that of the initial 0, and of steps that were not measured."""
    squared_weights: float = 0.0
    """Sum of the squared weights of the estimates."""
    tokens: float = 0.0
    samples: int = 0
    finite: bool = True

    def after(self, estimate: NoiseScaleEstimate | None, *, tokens: float, micro_batches: int) -> Self:
        """Return the noise scale after one more step; a step without a finite estimate only adds its tokens.

        Args:
            estimate: Estimate of the step; None if it has none.
            tokens: Tokens of the step.
            micro_batches: Micro-batches of the step over all replicas.
        """
        tokens += self.tokens
        if estimate is None or not estimate.finite:
            return dataclasses.replace(self, tokens=tokens, finite=estimate is None)
        keep = self.smoothing.keeps(tokens - self.tokens, tokens)
        return dataclasses.replace(
            self,
            signal_average=keep * self.signal_average + (1 - keep) * estimate.signal,
            noise_average=keep * self.noise_average + (1 - keep) * estimate.noise,
            signal_squares=keep * self.signal_squares + (1 - keep) * estimate.signal**2,
            weight=keep * self.weight + (1 - keep),
            squared_weights=keep**2 * self.squared_weights + (1 - keep) ** 2,
            tokens=tokens,
            samples=self.samples + micro_batches - 1,
            finite=True,
        )

    def passing(self, tokens: float, steps: int = 1, least: float = 0.0) -> Self:
        """Return the noise scale after steps that were not measured: the weight of all estimates falls, so averages span as many steps.

        Args:
            tokens: Tokens of each step.
            steps: Number of the steps.
            least: Smallest fraction of its weight that each estimate keeps.
        """
        keeps = (self.smoothing.keeps(tokens, self.tokens + number * tokens) for number in range(1, steps + 1))
        keep = max(least, math.prod(keeps))
        return dataclasses.replace(
            self,
            signal_average=keep * self.signal_average,
            noise_average=keep * self.noise_average,
            signal_squares=keep * self.signal_squares,
            weight=keep * self.weight,
            squared_weights=keep**2 * self.squared_weights,
            tokens=self.tokens + steps * tokens,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the noise scale whose fields `dataclasses.asdict` returned, as a checkpoint holds them."""
        return cls(**{**values, "smoothing": Smoothing(**values["smoothing"])})

    @property
    def signal(self) -> float:
        """Return |G|^2 without the bias of the initial 0; NaN before the first estimate."""
        return self.signal_average / self.weight if self.weight else math.nan

    @property
    def noise(self) -> float:
        """Return tr(Sigma) of a single token without the bias of the initial 0; NaN before the first estimate."""
        return self.noise_average / self.weight if self.weight else math.nan

    @property
    def signal_error(self) -> float:
        """Return the standard error of |G|^2, if steps are independent; 0 before the second estimate."""
        share = self.squared_weights / self.weight**2 if self.weight else 1.0
        if not share < 1 - _SAME:
            return 0.0
        variance = max(0.0, self.signal_squares / self.weight - self.signal**2) / (1 - share)
        return math.sqrt(variance * share)

    @property
    def tokens_per_batch(self) -> float:
        """Return the calibrated noise scale in tokens; NaN if signal or noise is not positive. For sequences, divide by `seq_len`."""
        return self.smoothing.calibration * self.noise / self.signal if self.signal > 0 and self.noise > 0 else math.nan

    @property
    def health(self) -> Health:
        """Return the reliability of the present estimate."""
        if not self.finite:
            return Health.NOT_FINITE
        if self.samples < self.smoothing.enough_samples:
            return Health.TOO_FEW_SAMPLES
        if not self.signal > self.signal_error:
            return Health.NO_SIGNAL
        return Health.HEALTHY if self.noise > 0 else Health.NO_NOISE
