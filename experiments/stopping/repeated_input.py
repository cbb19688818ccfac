"""Repeat the query of one input, and compute what its repetitions teach about all inputs (OPPA App. F.3.1, figures 11 to 13).

A few inputs of a function are measured. Then another one is repeated: the maximiser of GP-UCB, which is slower, or the best one.

Notation (n inputs, s draws):
    log_rate   joint distribution of the logarithms of the rates     (n,), (n, n)
    optimal    probability that an input has the largest rate        (n,)
    maximum    draws of the largest rate                             (s,)
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import gaussian_kde

from experiments.stopping.surfaces import BETA, conditioned, log_rates, surface
from oppa.random_streams import stream
from oppa.report.figures import Axis, Series, lines
from oppa.report.record import Section
from oppa.tuning.expected_loss import draw_normal
from oppa.tuning.surrogate.distributions import Joint

FUNCTION = "two hills"
MEASURED, FIRST = (0, 40, 75, 100), 20
"""Rows of the inputs that are measured first, none of them on the top of a hill, and the repetitions of each."""
NOISE = 0.3
"""Standard deviation of the logarithm of the rate that one repetition measures."""
REPETITIONS = (0, 1, 20, 100)
DRAWS = 4000
NEAR = 5
"""Number of rows on each side of an input that are near it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Holds the mean of the log rates that some repetitions of an input measured, and its variance."""

    row: int
    log_rate: float
    variance: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimumBelief:
    """Holds what the process predicts from some measurements."""

    log_rate: Joint
    optimal: NDArray[np.float64]
    maximum: NDArray[np.float64]

    def near(self, row: int) -> float:
        """Return the probability that the optimum is near an input."""
        return float(self.optimal[max(0, row - NEAR) : row + NEAR + 1].sum())

    def stddev(self, row: int) -> float:
        """Return the standard deviation of the log rate of an input."""
        return float(self.log_rate.covariance[row, row].clamp_min(0).sqrt())


def measured(seed: int) -> list[Mean]:
    """Return the mean of each input that is measured first."""
    luck = stream(seed, "measured").standard_normal((len(MEASURED), FIRST))
    return [_mean(row, each) for row, each in zip(MEASURED, luck, strict=True)]


def repeated(row: int, repetitions: int, seed: int) -> list[Mean]:
    """Return the mean of an input's repetitions, or nothing without repetitions; more repetitions continue fewer ones."""
    luck = stream(seed, f"repeated {row}").standard_normal(max(REPETITIONS))
    return [_mean(row, luck[:repetitions])] if repetitions else []


@functools.cache
def belief(row: int, repetitions: int, seed: int = 0) -> OptimumBelief:
    """Return the predictions after the repetitions of an input; the normal draws behind them are always the same."""
    over = surface(FUNCTION)
    means = measured(seed) + repeated(row, repetitions, seed)
    log_rate, variance = torch.tensor([(each.log_rate, each.variance) for each in means], dtype=torch.float64).T
    joint = log_rates(over, conditioned(over, [each.row for each in means], log_rate, variance))
    drawn = draw_normal(joint, draws=DRAWS)
    optimal = np.bincount(drawn.argmax(dim=1).numpy(), minlength=len(over.x)) / DRAWS
    return OptimumBelief(log_rate=joint, optimal=optimal, maximum=drawn.amax(dim=1).exp().numpy())


def best() -> int:
    """Return the input with the largest rate, by row."""
    return int(surface(FUNCTION).rate.argmax())


def most_promising(seed: int = 0) -> int:
    """Return the input that GP-UCB repeats, by row, which is slower than the best one."""
    log_rate = belief(best(), 0, seed).log_rate
    return int((log_rate.mean + BETA * log_rate.covariance.diagonal().sqrt()).argmax())


def change(row: int, fewer: int, more: int, seed: int = 0) -> float:
    """Return how much further repetitions change the distribution of the optimum, as the total variation distance."""
    return float(np.abs(belief(row, more, seed).optimal - belief(row, fewer, seed).optimal).sum() / 2)


def repetition_section(repeats: int) -> Section:
    """Return a table with a row for each repeated input and number of repetitions, of one seed, and what holds in `repeats` seeds."""
    slower, top = most_promising(), best()
    repeated_rows = {f"slower, {_x(slower):g}": slower, f"best, {_x(top):g}": top}
    rows = [(name, *_cells(row, count, top)) for name, row in repeated_rows.items() for count in REPETITIONS]
    columns = ("repeated input", ">repetitions", ">deviation", ">optimum near it", ">optimum near the best", ">changed", "maximum")
    return Section(title="What repetitions teach (figures 11 to 13)", text=_text(repeats), columns=columns, rows=rows)


def _text(repeats: int) -> str:
    *_, fewer, more = REPETITIONS
    proposed = {seed: most_promising(seed) for seed in range(repeats)}
    settled = sum(change(row, fewer, more, seed) < change(row, 0, fewer, seed) for seed, row in proposed.items())
    slower, top = _spreads(proposed), _spreads(dict.fromkeys(proposed, best()))
    return (
        f"One example, on `{FUNCTION}` with noise of {NOISE:.0%}. {len(MEASURED)} inputs are measured {FIRST} times each. Then the slower "
        f"input that GP-UCB proposes, or the best one, is repeated. `deviation` is that of its predicted log rate. `near` is within "
        f"{_x(NEAR):g}. `changed` is the total variation distance from the optimum's distribution in the row above. `maximum` has the 90% "
        "interval of the largest rate.\n\n"
        "Repetitions of the slower input show that the optimum is hardly near it. They do not reveal the best input, and the maximum stays "
        "as uncertain. Repetitions of the best input make the maximum more certain up to the last.\n\n"
        f"In {settled} of {repeats} seeds, repetitions {fewer} to {more} of the slower input changed the optimum's distribution less than "
        "those before. Medians of the maximum's standard deviation over the seeds, for the same repetitions: "
        f"{slower} with the slower input, {top} with the best one."
    )


def _spreads(rows: Mapping[int, int]) -> str:
    """Return the last two standard deviations of the maximum, as medians over seeds whose repeated input is given."""
    fewer, more = (np.median([belief(row, count, seed).maximum.std() for seed, row in rows.items()]) for count in REPETITIONS[-2:])
    return f"{fewer:.2f} to {more:.2f}"


def _cells(row: int, count: int, top: int) -> tuple[str, ...]:
    found = belief(row, count)
    fewer = REPETITIONS[max(0, REPETITIONS.index(count) - 1)]
    changed = f"{change(row, fewer, count):.2f}" if count > fewer else ""
    low, high = np.quantile(found.maximum, (0.05, 0.95))
    near = (f"{found.near(row):.2f}", f"{found.near(top):.2f}")
    return (str(count), f"{found.stddev(row):.1%}", *near, changed, f"{low:.2f} - {high:.2f}")


def repetition_figures() -> dict[str, str]:
    """Return SVG by file name, after figures 11, 12 and 13 of the paper."""
    slower, x, rate = most_promising(), Axis(label="input"), Axis(label="rate")
    panels = {_times(count): _predicted(slower, count) for count in REPETITIONS}
    optimum = Axis(label=f"probability: optimum within {_x(NEAR):g}")
    largest, density = Axis(label="largest rate"), Axis(label="probability density")
    return {
        "repeated-slower.svg": lines(panels, x=x, y=rate, description="Predictions, slower input (figure 11)"),
        "optimum-slower.svg": lines({"": _optima(slower)}, x=x, y=optimum, description="Optimum, slower input (figure 11)"),
        "maximum-slower.svg": lines({"": _densities(slower)}, x=largest, y=density, description="Maximum, slower input (figure 12)"),
        "maximum-best.svg": lines({"": _densities(best())}, x=largest, y=density, description="Maximum, best input (figure 13)"),
    }


def _predicted(row: int, count: int) -> list[Series]:
    """Return the lines of a panel: the truth, the prediction with its band, and each measured mean with its standard deviation."""
    log_rate, x = belief(row, count).log_rate, _inputs()
    stddev = log_rate.covariance.diagonal().clamp_min(0).sqrt()
    middle, low, high = (value.exp().tolist() for value in (log_rate.mean, log_rate.mean - stddev, log_rate.mean + stddev))
    return [
        Series(name="predicted", x=x, y=middle, low=low, high=high),
        Series(name="truth", x=x, y=surface(FUNCTION).rate.tolist()),
        *(_mark("measured first", each) for each in measured(0)),
        *(_mark("repeated", each) for each in repeated(row, count, 0)),
    ]


def _mark(name: str, mean: Mean) -> Series:
    low, middle, high = np.exp(mean.log_rate + mean.variance**0.5 * np.array([-1, 0, 1])).tolist()
    return Series(name=name, x=[_x(mean.row)], y=[middle], low=[low], high=[high])


def _optima(row: int) -> list[Series]:
    """Return the probability that the optimum is near each input, for each number of repetitions."""
    found = {count: belief(row, count) for count in REPETITIONS}
    return [Series(name=_times(count), x=_inputs(), y=[each.near(at) for at in range(len(_inputs()))]) for count, each in found.items()]


def _densities(row: int) -> list[Series]:
    """Return the density of the maximum for each number of repetitions; its range is the same for every input."""
    every = np.concatenate([belief(each, count).maximum for each in (most_promising(), best()) for count in REPETITIONS])
    x = np.linspace(every.min(), np.quantile(every, 0.999), 150)
    return [Series(name=_times(count), x=x.tolist(), y=gaussian_kde(belief(row, count).maximum)(x).tolist()) for count in REPETITIONS]


def _mean(row: int, luck: NDArray[np.float64]) -> Mean:
    log_rate = float(surface(FUNCTION).rate[row].log()) + NOISE * float(np.mean(luck))
    return Mean(row=row, log_rate=log_rate, variance=NOISE**2 / len(luck))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _inputs() -> list[float]:
    return surface(FUNCTION).x[:, 0].tolist()


def _x(row: int) -> float:
    return _inputs()[row]
