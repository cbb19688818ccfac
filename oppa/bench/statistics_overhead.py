"""What gradient statistics cost: steps with them and without, in turn within one run, on ranks that really train.

Notation (n pairs of steps that follow each other, the order reversed every time):
    overhead    of a pair: (with - without) / without; of a layout: the median of its pairs
    interval    of the median, at 95%, from order statistics: with l the largest number for which P(X < l) <= 2.5%, X ~ Binomial(n, 1/2),
                from the l-th smallest to the l-th largest; nothing is assumed of how pairs are distributed, but that they are independent
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from scipy.stats import binom

from oppa.bench.training_gang import Order, TrainingGang, words_of
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.report.record import Section

MODEL = Model(name="two layers", layers=2, hidden=96, heads=4, kv_heads=4, ffn=304, vocab=256, seq_len=128)
MICRO_BATCH, GLOBAL_BATCH = 32, 64
"""In sequences. Statistics read a gradient once a micro-batch, so what they cost falls with its tokens: 4096 are few for a real model."""

_LAYOUTS = ({"dp": 2}, {"pp": 2}, {"tp": 2}, {"dp": 2, "zero_stage": 3})
LAYOUTS = tuple(Configuration(**{"dp": 1, **layout}, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH) for layout in _LAYOUTS)  # type: ignore[arg-type]
"""Two ranks: where each has a core of its own, a step's time is not that of taking turns."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Of one layout: seconds of steps with statistics and without, pair by pair."""

    layout: str
    pairs: Sequence[tuple[float, float]]

    @property
    def of_pairs(self) -> list[float]:
        """What statistics add to a step, as a fraction of it."""
        return [(watched - unwatched) / unwatched for watched, unwatched in self.pairs]

    @property
    def median(self) -> float:
        """Over the pairs."""
        return statistics.median(self.of_pairs)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the median, at 95%."""
        return median_interval(self.of_pairs)

    @property
    def step_time_s(self) -> float:
        """Without statistics, median."""
        return statistics.median(unwatched for _, unwatched in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        low, high = self.interval
        return {
            "layout": self.layout,
            "pairs": len(self.pairs),
            "step_time_s": self.step_time_s,
            "overhead": self.median,
            "overhead_95": [low, high],
        }


def measure(gang: TrainingGang, layout: Configuration, pairs: int, model: Model = MODEL) -> Overhead:
    """Of one layout; raises EnvironmentLackingError if its ranks fail."""
    ran = gang.run(Order(program="alternate", model=model, layouts=(layout,), pairs=pairs))
    # All ranks begin and end a step together: the first one's clock will do.
    return Overhead(layout=words_of(layout), pairs=[(watched, unwatched) for watched, unwatched in ran.answers[0]])


def overheads(pairs: int, tell: Callable[[str], None], layouts: Sequence[Configuration] = LAYOUTS, model: Model = MODEL) -> list[Overhead]:
    """Of each layout."""
    found = []
    with TrainingGang() as gang:
        for layout in layouts:
            tell(f"gradient statistics on and off, {pairs} pairs of steps: {words_of(layout)}")
            found.append(measure(gang, layout, pairs, model))
    return found


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval that has the median of what the values are drawn from with this probability or more; all of them if they are few."""
    order = sorted(values)
    place = max(1, int(binom.ppf((1 - confidence) / 2, len(order), 0.5)))
    return order[place - 1], order[-place]


def section(found: Sequence[Overhead], model: Model = MODEL) -> Section:
    """A row for each layout."""
    worst = max(found, key=lambda each: each.median)
    rows = [
        (
            each.layout,
            f"{each.step_time_s * 1e3:.0f}",
            f"{each.median:+.2%}",
            "{:+.2%} to {:+.2%}".format(*each.interval),
            len(each.pairs),
        )
        for each in found
    ]
    text = (
        f"Ranks on gloo train {model.parameter_count / 1e6:.2g} million weights, {MICRO_BATCH * model.seq_len} tokens a "
        "micro-batch. Steps with statistics and without take turns within one run, and the order is reversed every time. Overhead: the "
        "median over pairs of (with - without) / without, and its 95% interval (order statistics). "
        f"The largest: {worst.median:+.2%}, {worst.layout}."
    )
    columns = ("layout", ">step without, ms", ">overhead", ">95% interval of the median", ">pairs")
    return Section(title="What gradient statistics cost", text=text, columns=columns, rows=rows)
