"""The gradient noise scale: up to how many tokens a larger batch still learns more a step (McCandlish et al. 2018).

A gradient over b tokens is the true gradient and noise, whose variance falls with b: E |g|^2 = |G|^2 + tr(Sigma) / b. The squared
norms at two sizes, of a step's micro-batches and of their mean, therefore tell both. Where all micro-batches have the same size this
is Algorithm 1 of COPUS, and its factor N - 1.

Notation (N micro-batches in a step, over all replicas; b_n tokens in one of them, B in all):
    w_n            what it counts in the mean gradient: w_n = a_n / sum of a, with a_n = b_n by default, so that tokens count alike
    small          sum of w_n |g_n|^2, in expectation |G|^2 + tr(Sigma) / small_tokens      1 / small_tokens = sum of w_n / b_n
    big            |sum of w_n g_n|^2, in expectation |G|^2 + tr(Sigma) / big_tokens        1 / big_tokens = sum of w_n^2 / b_n
    signal, noise  |G|^2, and tr(Sigma) of a single token
"""

import dataclasses
import enum
import math
from collections.abc import Iterable, Sequence
from typing import Self

_SAME = 1e-9
"""Sizes that differ by less, relatively, are one: a single micro-batch, give or take rounding."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Squared norms of a step's gradients at two sizes, in tokens."""

    small: float
    big: float
    small_tokens: float
    big_tokens: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One step's unbiased estimate of |G|^2 and tr(Sigma); either may be negative, as only their mean over many steps is not."""

    signal: float
    noise: float

    @property
    def finite(self) -> bool:
        """Whether both are numbers."""
        return math.isfinite(self.signal) and math.isfinite(self.noise)


def telling(groups: Iterable[Norms]) -> list[Norms]:
    """Those of more than one micro-batch."""
    return [norms for norms in groups if norms.big_tokens > norms.small_tokens * (1 + _SAME)]


def estimate_of(groups: Iterable[Norms]) -> Estimate | None:
    """What a step says of all groups of parameters together (COPUS, Algorithm 1, lines 14 and 15, for micro-batches of any size).

    A group of one micro-batch says nothing, and is left out of both; None where that leaves none.
    """
    known = telling(groups)
    if not known:
        return None
    return Estimate(
        signal=sum((n.big * n.big_tokens - n.small * n.small_tokens) / (n.big_tokens - n.small_tokens) for n in known),
        noise=sum((n.small - n.big) / (1 / n.small_tokens - 1 / n.big_tokens) for n in known),
    )


def paper_estimate(squared_norms: Sequence[float], mean_squared_norm: float, global_batch: float) -> Estimate | None:
    """COPUS, Algorithm 1, lines 9 to 15, as written: all micro-batches count alike, however many tokens they have.

    Args:
        squared_norms: |g_n|^2 of each micro-batch's mean gradient.
        mean_squared_norm: Squared norm of the gradient that the optimizer gets.
        global_batch: In the unit that the noise scale is wanted in.
    """
    count = len(squared_norms)
    if count < 2:
        return None
    mean = sum(squared_norms) / count
    return Estimate(
        signal=(count * mean_squared_norm - mean) / (count - 1),
        noise=(mean - mean_squared_norm) * global_batch / (count - 1),
    )


class Health(enum.StrEnum):
    """Whether the noise scale can be believed, and if not, why."""

    HEALTHY = "healthy"
    NOT_FINITE = "the last gradients were not finite"
    TOO_FEW_SAMPLES = "too few micro-batches so far; a step needs two or more over all replicas to count"
    NO_SIGNAL = "noise hides the gradient: the mean of |G|^2 is not positive; average over more steps or take larger batches"
    NO_NOISE = "micro-batches do not differ: the mean of tr(Sigma) is not positive; are they drawn independently?"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """How steps are averaged: slower once training has warmed up (COPUS, section 6.1).

    The noise scale grows with what was trained, so an average over much of that lags far behind. 100 steps, as the paper has it, are
    little of 100,000 and a quarter of 400; by default it reaches back over no more than a `share`, but always over some steps.
    """

    warming: float = 0.95
    """What an average keeps at each step, and the least that it keeps later."""
    steady: float = 0.99
    """And the most."""
    warmup_tokens: float = 8e6
    share: float = 0.2
    """Of all tokens so far, over which it is averaged later; infinite: `steady` alone counts (COPUS, section 6.1)."""
    calibration: float = 2.0
    """What tr(Sigma) is multiplied with: the noise scale is found at half the critical batch size (COPUS, section 6.1)."""
    enough_samples: int = 32
    """Micro-batches beyond the first of each step. By it the noise has a standard error of some 25%, if many directions share it."""

    def keeps(self, tokens: float, total: float) -> float:
        """The share of its value that an average keeps at a step over so many tokens, of so many in all."""
        if total <= self.warmup_tokens:
            return self.warming
        return max(self.warming, min(self.steady, 1 - tokens / (self.share * total)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """What the steps so far say."""

    smoothing: Smoothing = Smoothing()
    signal_average: float = 0.0
    noise_average: float = 0.0
    """Averages that start at 0, as the paper has them: too low at first, both by the same factor (Algorithm 1, lines 17 and 18)."""
    weight: float = 0.0
    """What of the averages is not their start."""
    tokens: float = 0.0
    samples: int = 0
    finite: bool = True

    def after(self, estimate: Estimate | None, *, tokens: float, micro_batches: int) -> Self:
        """The same after one more step over so many tokens; of a step without an estimate, or without a finite one, only these count."""
        tokens += self.tokens
        if estimate is None or not estimate.finite:
            return dataclasses.replace(self, tokens=tokens, finite=estimate is None)
        keep = self.smoothing.keeps(tokens - self.tokens, tokens)
        return dataclasses.replace(
            self,
            signal_average=keep * self.signal_average + (1 - keep) * estimate.signal,
            noise_average=keep * self.noise_average + (1 - keep) * estimate.noise,
            weight=keep * self.weight + (1 - keep),
            tokens=tokens,
            samples=self.samples + micro_batches - 1,
            finite=True,
        )

    @property
    def signal(self) -> float:
        """|G|^2 without the bias of the start; NaN before the first estimate."""
        return self.signal_average / self.weight if self.weight else math.nan

    @property
    def noise(self) -> float:
        """tr(Sigma) of a token without the bias of the start; NaN before the first estimate."""
        return self.noise_average / self.weight if self.weight else math.nan

    @property
    def tokens_per_batch(self) -> float:
        """The calibrated noise scale in tokens; NaN where there is none. Divide by a sequence's tokens to have it in sequences."""
        return self.smoothing.calibration * self.noise / self.signal if self.signal > 0 and self.noise > 0 else math.nan

    @property
    def health(self) -> Health:
        """Whether to believe it."""
        if not self.finite:
            return Health.NOT_FINITE
        if self.samples < self.smoothing.enough_samples:
            return Health.TOO_FEW_SAMPLES
        if not self.signal > 0:
            return Health.NO_SIGNAL
        return Health.HEALTHY if self.noise > 0 else Health.NO_NOISE
