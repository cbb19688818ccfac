"""What gradient statistics and changes of batch sizes cost: steps with them and without, in turn within a run on ranks that really train.

Notation (n pairs of steps that follow each other, the order reversed every time):
    overhead    of a pair: (with - without) / without; of a place: the median of its pairs
    interval    of the median, at 95%, from order statistics: with l the largest number for which P(X < l) <= 2.5%, X ~ Binomial(n, 1/2),
                from the l-th smallest to the l-th largest; nothing is assumed of how pairs are distributed, but that they are independent
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from scipy.stats import binom

from oppa.bench.training_gang import Order, TrainingGang, words_of
from oppa.problem.configuration import Configuration
from oppa.problem.machine import Machine
from oppa.problem.model import Model
from oppa.problem.presets import PRESETS
from oppa.report.record import Section

MICRO_BATCH, GLOBAL_BATCH = 32, 64
"""In sequences. Statistics read a gradient once a micro-batch, so what they cost falls with its tokens: 4096 are few for a real model."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Something that a step can be with or without."""

    program: Literal["alternate", "rebatch"]
    """What the ranks do."""
    title: str
    words: str
    """For people, who know each pair by them."""


STATISTICS = Kind(program="alternate", title="What gradient statistics cost", words="gradient statistics and without")
BATCHES = Kind(program="rebatch", title="What a change of batch sizes costs", words="the batch doubled before them and without")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is trained, how, and on what."""

    layout: Configuration
    model: Model
    device: str = "CPU"

    def __str__(self) -> str:
        return words_of(self.layout) or f"one {self.device}"


SMALL = Model(name="two layers", layers=2, hidden=96, heads=4, kv_heads=4, ffn=304, vocab=256, seq_len=128)
_LAYOUTS = ({"dp": 2}, {"pp": 2}, {"tp": 2}, {"dp": 2, "zero_stage": 3})
ON_CPU = tuple(
    Place(layout=Configuration(**{"dp": 1, **layout}, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH), model=SMALL)  # type: ignore[arg-type]
    for layout in _LAYOUTS
)
"""Two ranks: where each has a core of its own, a step's time is not that of taking turns."""


def on_cuda(machine: Machine) -> tuple[Place, ...]:
    """One CUDA device alone, with a model that keeps it busy; nothing where there is none."""
    alone = Configuration(dp=1, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH)
    return (Place(layout=alone, model=PRESETS["tiny-64m"], device=machine.gpu),) if machine.gpus else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Of one place: seconds of steps with it and without, pair by pair."""

    place: Place
    pairs: Sequence[tuple[float, float]]

    @property
    def of_pairs(self) -> list[float]:
        """What it adds to a step, as a fraction of it."""
        return [(with_it - without) / without for with_it, without in self.pairs]

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
        """Without it, median."""
        return statistics.median(without for _, without in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        low, high = self.interval
        return {
            "place": str(self.place),
            "pairs": len(self.pairs),
            "step_time_s": self.step_time_s,
            "overhead": self.median,
            "overhead_95": [low, high],
        }


def overheads(kind: Kind, places: Sequence[Place], pairs: int, tell: Callable[[str], None]) -> list[Overhead]:
    """At each place; raises EnvironmentLackingError if ranks fail."""
    found = []
    with TrainingGang() as gang:
        for place in places:
            tell(f"{pairs} pairs of steps with {kind.words}: {place}")
            order = Order(program=kind.program, model=place.model, layouts=(place.layout,), pairs=pairs, device=place.device)
            # All ranks begin and end a step together: the first one's clock will do.
            found.append(Overhead(place=place, pairs=[(with_it, without) for with_it, without in gang.run(order).answers[0]]))
    return found


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval that has the median of what the values are drawn from with this probability or more; all of them if they are few."""
    order = sorted(values)
    place = max(1, int(binom.ppf((1 - confidence) / 2, len(order), 0.5)))
    return order[place - 1], order[-place]


def section(kind: Kind, found: Sequence[Overhead]) -> Section:
    """A row for each place."""
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
        f"Steps with {kind.words} take turns within one run, and the order is reversed every time. Overhead: the median over pairs of "
        "(with - without) / without, and its 95% interval (order statistics). On CPUs ranks talk over gloo; a CUDA device times itself, by "
        f"events. {MICRO_BATCH} sequences a micro-batch, {GLOBAL_BATCH} a step. The largest: {worst.median:+.2%}, {worst.place}."
    )
    columns = ("place", ">million weights", ">step without, ms", ">overhead", ">95% interval of the median", ">pairs")
    return Section(title=kind.title, text=text, columns=columns, rows=rows)
