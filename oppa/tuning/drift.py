"""Estimate how the speed of the machine drifts during a search, from repeats of the incumbent, and decide when to repeat it.

A machine that slows down in a search, by heat or other jobs, makes later configurations look slow. The log rate of a trial is that of its
configuration, plus the drift, plus noise. The drift is a random walk over the number of trials, and only repeats tell it from the
configurations. It counts if a likelihood ratio test rejects a machine without drift, which may be noisier than most.

Notation (m measured trials of configurations that ran twice or more, g such configurations):
    y    log rates, steps per second                         (m,)
    X    which configuration each trial has                  (m, g)
    K    covariance of a random walk of unit variance        (m, m)
    R    variance of the noise of each trial                 (m,)
    rate variance of the drift per trial
"""

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.study import Trial
from oppa.study.records import DRIFT, VERIFICATION
from oppa.trials.throughput import TRIAL_STDDEV

Array = NDArray[np.float64]

FEWEST = 10
"""Measured trials before the first repeat. A shorter search is compared by its repeats in turn at the end."""
CLOSEST = 4
"""Trials from one repeat to the next at least, so that repeats are at most a fifth of the trials."""
SIGNIFICANT = 2.71
"""Twice the log likelihood ratio at 5%: half of chi-squared with one degree of freedom, as a variance cannot be negative."""
NOISES = (1.0, 1.5, 2.0, 3.0, 5.0)
"""Noise of a trial among which the likeliest is sought, as multiples of TRIAL_STDDEV, with and without a drift."""
NOISE_SPREAD = 0.5
"""Standard deviation of the logarithm of that multiple: a few repeats cannot tell noise from a drift."""
_STDDEVS = np.geomspace(1e-4, 1.0, 33)
"""Standard deviations of the drift per trial among which the likeliest is sought."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Describes the drift of a study; without a significant one, all offsets are 0."""

    stddev: float = 0.0
    """Standard deviation of the drift of log throughput from one trial to the next."""
    offsets: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Log throughput of each measured trial in excess of what the machine would give at the last trial, by the trial's number."""

    @property
    def change(self) -> float:
        """Return by which share the machine is faster at the last trial than at the first; negative if it is slower."""
        return math.expm1(-next(iter(self.offsets.values()), 0.0))


def drift_of(trials: Sequence[Trial]) -> Drift:
    """Return the drift of a study, whose trials are given oldest first.

    There is none unless the study repeated the incumbent for this purpose. Nothing is corrected if its trials ran on several sets of
    hosts, because these differ as well.
    """
    seen = [trial for trial in _compared(trials) if trial.steps_per_s]
    if not any(trial.purpose == DRIFT for trial in seen) or _changes_hosts(seen):
        return Drift()
    count = Counter(trial.configuration for trial in seen)
    at = np.array([position for position, trial in enumerate(seen) if count[trial.configuration] > 1], dtype=np.float64)
    repeated = [trial for trial in seen if count[trial.configuration] > 1]
    y = np.array([math.log(trial.steps_per_s or 1.0) for trial in repeated])
    within = np.array([(trial.variance or 0.0) / (trial.steps_per_s or 1.0) ** 2 for trial in repeated])
    noises = [(TRIAL_STDDEV * each) ** 2 + within for each in NOISES]
    kinds = {configuration: column for column, configuration in enumerate(dict.fromkeys(trial.configuration for trial in repeated))}
    x = np.zeros((len(repeated), len(kinds)))
    x[range(len(repeated)), [kinds[trial.configuration] for trial in repeated]] = 1.0
    walk = np.minimum.outer(at, at)
    priors = [-0.5 * (math.log(each) / NOISE_SPREAD) ** 2 for each in NOISES]
    known = list(zip(noises, priors, strict=True))
    still = max(_log_likelihood(y, x, np.diag(noise)) + prior for noise, prior in known)
    walking = [
        (_log_likelihood(y, x, stddev**2 * walk + np.diag(noise)) + prior, stddev, noise) for stddev in _STDDEVS for noise, prior in known
    ]
    likeliest, stddev, noise = max(walking, key=operator.itemgetter(0))
    if 2 * (likeliest - still) < SIGNIFICANT:
        return Drift()
    variance = stddev**2
    residual, solved = _residual(y, x, variance * walk + np.diag(noise))
    path = variance * np.minimum.outer(np.arange(len(seen), dtype=np.float64), at) @ solved(residual)
    return Drift(stddev=float(stddev), offsets={trial.id: float(each) for trial, each in zip(seen, path - path[-1], strict=True)})


def is_due(trials: Sequence[Trial], *, resumed: bool = False, ending: bool = False) -> bool:
    """Return whether the incumbent is to run again before the next candidate; False where a drift would not be corrected anyway.

    The drift is taken for a random walk. A machine that stood still for T trials then drifts by no more than the noise of a trial in the
    next T. So repeats become rarer while it stands still. With a drift of variance v per trial, the noise s is reached after s^2 / v
    trials.

    Args:
        trials: Every trial of the study, oldest first.
        resumed: The search continues a study, and this session has not repeated the incumbent.
        ending: The search has no trials left, so that nothing else would show a drift since the last repeat.
    """
    seen = _compared(trials)
    if len(seen) < FEWEST or _changes_hosts(seen):
        return False
    repeats = [position for position, trial in enumerate(seen) if trial.purpose == DRIFT]
    since = len(seen) - 1 - repeats[-1] if repeats else len(seen)
    if resumed or ending:
        return since >= (1 if resumed else CLOSEST)
    again = {seen[position].configuration for position in repeats}
    begun = next((position for position, trial in enumerate(seen) if trial.configuration in again), 0)
    still = max(FEWEST, repeats[-1] - begun if repeats else 0)
    stddev = drift_of(trials).stddev
    return since >= (max(CLOSEST, min(still, (TRIAL_STDDEV / stddev) ** 2)) if stddev else still)


def _compared(trials: Sequence[Trial]) -> list[Trial]:
    """Return the measured trials, and repeats that failed; those of verification take turns, and need no correction."""
    return [trial for trial in trials if trial.counts and (trial.steps_per_s or trial.purpose == DRIFT) and trial.purpose != VERIFICATION]


def _changes_hosts(seen: Sequence[Trial]) -> bool:
    return len({trial.hosts for trial in seen}) > 1


def _residual(y: Array, x: Array, covariance: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the residuals of the generalised least squares fit, and the function that solves with the covariance."""
    factor = np.linalg.cholesky(covariance)

    def solved(values: Array) -> Array:
        return np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, values)))

    return y - x @ np.linalg.solve(x.T @ solved(x), x.T @ solved(y)), solved


def _log_likelihood(y: Array, x: Array, covariance: Array) -> float:
    """Return the restricted log likelihood, in which the configurations' own rates are integrated out, up to a constant."""
    residual, solved = _residual(y, x, covariance)
    determinants = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(x.T @ solved(x))[1]
    return float(-0.5 * (determinants + residual @ solved(residual)))
