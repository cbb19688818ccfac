"""Compute the reward of a window for each worker (DYNAMIX, section IV-D).

    paper         r = A + alpha max(0, dA) - beta T - eta (s^2 + s) - delta (log2(b) - 5)
    per-sample    r = A + alpha max(0, dA) - beta T / B / t0 - eta (s^2 + s) - delta log2(b / b_min)
    goodput       r = A + alpha max(0, dA) - beta ln(T / B / t0) - delta ln(1 + B / phi)

Notation (one worker's window):
    A, dA    mean accuracy of its batches, and its gain
    T        seconds of a step
    b, B     local and global batch, in samples
    t0       seconds of a step for each sample of the global batch, in the run's first window
    s        standard deviation of the step's gradient relative to its norm; counted only if the optimizer adapts to it, as Adam does
    phi      noise scale, in samples. Until it is reliable, that of the step alone: as |g|^2 = |G|^2 (1 + s^2) includes the batch's noise,
             phi = c s^2 B / (1 - s^2), with the calibration c of the noise scale (`Smoothing`)

In the paper's form, seconds of a step make tiny batches seem fast, and a batch below 32 is rewarded for its size. `per-sample` corrects
both. But it ignores the value of a sample in a large batch, so that its preferred size depends on delta alone. `goodput`, the default,
counts the cost of a size: ln(1 + B / phi) measures how many more samples the same progress takes (COPUS eq. 6). With beta and delta of 1,
the two terms are the logarithm of the time for that progress.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, Self, get_args

from oppa.control.decision import HEALTHY, JobState
from oppa.errors import InputError, require_known
from oppa.training.statistics.noise_scale import Smoothing

Form = Literal["goodput", "per-sample", "paper"]
CONSTANTS = ("alpha", "beta", "delta", "eta")
DEFAULTS: Mapping[Form, Mapping[str, float]] = {
    "goodput": {"alpha": 0.1, "beta": 1.0, "delta": 1.0, "eta": 0.0},
    "per-sample": {"alpha": 0.1, "beta": 1.0, "delta": 0.05, "eta": 0.05},
    "paper": {"alpha": 0.1, "beta": 1.0, "delta": 0.05, "eta": 0.05},
}
"""Default constants of each form; the paper gives none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Defines a reward function by its form and its constants."""

    form: Form = "goodput"
    alpha: float = DEFAULTS["goodput"]["alpha"]
    beta: float = DEFAULTS["goodput"]["beta"]
    delta: float = DEFAULTS["goodput"]["delta"]
    eta: float = DEFAULTS["goodput"]["eta"]
    adaptive: bool = True
    """True if the optimizer adapts its steps to gradients, as AdamW does; with SGD the noise term is 0."""

    def __post_init__(self) -> None:
        require_known(self.form, get_args(Form), f"`{self.form}` is not a form of the reward")
        if wrong := [name for name in CONSTANTS if not 0 <= getattr(self, name) < math.inf]:
            raise InputError(f"`{wrong[0]} = {getattr(self, wrong[0])}` is negative or not finite", hint="give 0 or more")

    @classmethod
    def usual(cls, form: Form, **constants: float) -> Self:
        """Build a reward with the form's default constants, except those given; raise InputError for an unknown form."""
        return cls(form=form, **{**DEFAULTS.get(form, {}), **constants})  # type: ignore[arg-type]

    def of(self, state: JobState, *, least: int, first_sample_s: float) -> list[float]:
        """Return the reward of each worker for a window that has ended.

        Args:
            state: State of the job at the end of the window.
            least: Smallest local batch b_min, in samples.
            first_sample_s: t0, in seconds per sample.
        """
        found = []
        for worker in state.workers:
            gained = worker.accuracy + self.alpha * max(0.0, worker.accuracy_gain)
            found.append(gained - self._costs(state, worker.local_batch, worker.step_s, least, first_sample_s))
        return found

    def _costs(self, state: JobState, local_batch: int, step_s: float, least: int, first_sample_s: float) -> float:
        total, measured = sum(worker.local_batch for worker in state.workers), max(0.0, state.variance_ratio or 0.0)
        inverse = _inverse_noise_scale(state, measured, total)
        variance = measured / total if self.adaptive else 0.0
        noise = self.eta * (variance + math.sqrt(variance))
        share = step_s / total / first_sample_s
        if self.form == "paper":
            return self.beta * step_s + noise + self.delta * (math.log2(local_batch) - 5)
        if self.form == "goodput" and inverse is not None:
            return self.beta * math.log(max(share, 1e-9)) + noise + self.delta * math.log1p(total * inverse)
        return self.beta * share + noise + self.delta * math.log2(local_batch / least)


def _inverse_noise_scale(state: JobState, measured: float, total: int) -> float | None:
    """Return 1 / phi, per sample; None if no statistic is known.

    Args:
        measured: s^2 B of the last step, in samples.
        total: Global batch B, in samples.
    """
    if state.health == HEALTHY and state.noise_scale:
        return 1 / state.noise_scale
    return max(0.0, 1 / measured - 1 / total) / Smoothing().calibration if measured else None


def sample_s(state: JobState) -> float:
    """Return the seconds of a step per sample of the global batch, in a window."""
    return max(worker.step_s for worker in state.workers) / sum(worker.local_batch for worker in state.workers)
