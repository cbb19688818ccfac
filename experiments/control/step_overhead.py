"""Measure the cost of gradient statistics and of batch-size changes: steps with and without them, alternately within one real run.

Notation (n pairs of consecutive steps, in alternating order):
    overhead    of a pair: (with - without) / without; of a place: the median of its pairs
    interval    of the median, at 95%, from order statistics: with l the largest number for which P(X < l) <= 2.5%, X ~ Binomial(n, 1/2),
                from the l-th smallest to the l-th largest; it assumes that pairs are independent, and nothing about their distribution
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from scipy.stats import binom

from experiments.lib.rank_pool import PoolRequest, RankPool, words_of
from oppa.problem.configuration import Configuration
from oppa.problem.detect import Machine
from oppa.problem.model import Model
from oppa.problem.presets import PRESETS
from oppa.report.record import Section

MICRO_BATCH, GLOBAL_BATCH = 32, 64
"""Sequences per micro-batch and per step. Statistics read a gradient once per micro-batch, so their relative cost falls with its tokens.

A micro-batch has 4096 tokens, few for a real model.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdditionalWork:
    """Describes additional work, which a step can be measured with or without."""

    program: Literal["alternate", "rebatch"]
    """Program of `pool_ranks` that measures it."""
    title: str
    words: str
    """Description of a pair of steps in tables and progress messages."""


CONFIDENCE = 0.95
"""Probability that an interval contains the median."""
STATISTICS = AdditionalWork(program="alternate", title="Cost of gradient statistics", words="gradient statistics and without")
BATCHES = AdditionalWork(program="rebatch", title="Cost of a change of batch sizes", words="the batch doubled before them and without")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """Describes what is measured: a layout, a model and a device."""

    layout: Configuration
    model: Model
    device: str = "CPU"

    def __str__(self) -> str:
        return words_of(self.layout) or f"one {self.device}"


SMALL = Model(name="two layers", layers=2, hidden=96, heads=4, kv_heads=4, ffn=304, vocab=256, seq_len=128)
_LAYOUTS = ({"dp": 2}, {"pp": 2}, {"tp": 2}, {"dp": 2, "zero_stage": 3})
ON_CPU = tuple(
    MeasuredLayout(layout=Configuration(**{"dp": 1, **layout}, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH), model=SMALL)  # type: ignore[arg-type]
    for layout in _LAYOUTS
)
"""Layouts of two ranks. If each rank has its own core, ranks do not take turns, and step times are meaningful."""


def on_cuda(machine: Machine) -> tuple[MeasuredLayout, ...]:
    """Return a place on one CUDA device, with a model that keeps it busy; empty without a device."""
    alone = Configuration(dp=1, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH)
    return (MeasuredLayout(layout=alone, model=PRESETS["tiny-64m"], device=machine.gpu),) if machine.gpus else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Holds the seconds of steps at one place, with and without the additional work, pair by pair."""

    place: MeasuredLayout
    pairs: Sequence[tuple[float, float]]

    @property
    def of_pairs(self) -> list[float]:
        """Return the overhead of each pair, as a fraction of the step without it."""
        return [(with_it - without) / without for with_it, without in self.pairs]

    @property
    def median(self) -> float:
        """Return the median overhead over the pairs."""
        return statistics.median(self.of_pairs)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of the median."""
        return median_interval(self.of_pairs)

    @property
    def step_time_s(self) -> float:
        """Return the median seconds of a step without the additional work."""
        return statistics.median(without for _, without in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        low, high = self.interval
        return {
            "place": str(self.place),
            "pairs": len(self.pairs),
            "step_time_s": self.step_time_s,
            "overhead": self.median,
            "overhead_95": [low, high],
        }


def overheads(kind: AdditionalWork, places: Sequence[MeasuredLayout], pairs: int, tell: Callable[[str], None]) -> list[Overhead]:
    """Measure the overhead at each place; raises EnvironmentLackingError if ranks fail."""
    found = []
    with RankPool() as pool:
        for place in places:
            tell(f"{pairs} pairs of steps with {kind.words}: {place}")
            request = PoolRequest(program=kind.program, model=place.model, layouts=(place.layout,), pairs=pairs, device=place.device)
            # All ranks begin and end a step together, so the times of rank 0 suffice.
            found.append(Overhead(place=place, pairs=[(with_it, without) for with_it, without in pool.run(request).answers[0]]))
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that contains the median with at least the probability CONFIDENCE; with few values, their whole range."""
    ordered = sorted(values)
    place = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)))
    return ordered[place - 1], ordered[-place]


def section(kind: AdditionalWork, found: Sequence[Overhead]) -> Section:
    """Return a table with a row for each place."""
    worst = max(found, key=lambda each: each.median)
    rows = [
        (
            str(each.place),
            f"{each.place.model.parameter_count / 1e6:.2g}",
            f"{each.step_time_s * 1e3:.3g}",
            f"{each.median:+.2%}",
            "{:+.2%} to {:+.2%}".format(*each.interval),
            len(each.pairs),
        )
        for each in found
    ]
    text = (
        f"Steps with {kind.words} alternate within one run, and their order is reversed every time. The overhead is the median over pairs "
        "of (with - without) / without, with its 95% interval (order statistics). On CPUs ranks use gloo; CUDA events time CUDA devices. A "
        f"micro-batch has {MICRO_BATCH} sequences, a step {GLOBAL_BATCH}. The largest overhead is {worst.median:+.2%}, {worst.place}."
    )
    columns = ("place", ">million weights", ">step without, ms", ">overhead", ">95% interval of the median", ">pairs")
    return Section(title=kind.title, text=text, columns=columns, rows=rows)
