"""What it costs to watch a training run, to change it, and to know what a change is worth: the figures of `oppa bench control`.

A part measures some of the figures; another one is another entry of PARTS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oppa.bench import resharding, statistics_overhead
from oppa.bench.profile_real import RealComparison, active_profile
from oppa.bench.resharding import Speedup, speedups
from oppa.bench.statistics_overhead import Overhead, overheads
from oppa.report.record import Section

PAIRS_PER_REPEAT = 40
"""Pairs of steps for each restart: both take seconds."""

LEAST_AGAIN = 3
"""Independent measurements of what profiles decide for, at least."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a part has found."""

    figures: Mapping[str, float]
    """The headlines; fractions, not per cent."""
    sections: Sequence[Section]
    details: Mapping[str, Any]
    """What they are made of, for JSON."""


Part = Callable[[int, Tell], Found]
"""Measures with so many repeats, and tells what it is at."""


def statistics_part(repeats: int, tell: Tell) -> Found:
    """What gradient statistics cost."""
    return of_overheads(overheads(PAIRS_PER_REPEAT * repeats, tell))


def resharding_part(repeats: int, tell: Tell) -> Found:
    """What a change of layout costs."""
    return of_speedups(speedups(repeats, tell))


def profile_part(repeats: int, tell: Tell) -> Found:
    """What an active profile costs and loses, against an exhaustive one."""
    return of_comparison(active_profile(tell, repeats=max(repeats, LEAST_AGAIN)))


PARTS: Mapping[str, Part] = {"statistics": statistics_part, "resharding": resharding_part, "profile": profile_part}


def of_overheads(found: Sequence[Overhead]) -> Found:
    """The largest overhead of any layout."""
    return Found(
        figures={"statistics_overhead": max(each.median for each in found)},
        sections=[statistics_overhead.section(found)],
        details={"statistics": [each.to_dict() for each in found]},
    )


def of_speedups(found: Sequence[Speedup]) -> Found:
    """The smallest speed-up of any change, against an ordinary, cold restart."""
    return Found(
        figures={"reshard_speedup": min(each.median("cold") for each in found)},
        sections=resharding.sections(found),
        details={"resharding": [each.to_dict() for each in found]},
    )


def of_comparison(found: RealComparison) -> Found:
    """The largest regret of any trajectory, and the share of the seconds."""
    return Found(figures=found.figures, sections=[found.section], details={"profile": found.to_dict()})


def measure(repeats: int, tell: Tell, parts: Mapping[str, Part] = PARTS) -> list[Found]:
    """All parts, one after the other."""
    return [part(repeats, tell) for part in parts.values()]


def to_json(found: Iterable[Found], environment: Mapping[str, str]) -> dict[str, Any]:
    """The figures by name, then what they are made of."""
    everything = list(found)
    figures = {name: value for each in everything for name, value in each.figures.items()}
    return {**figures, **{name: value for each in everything for name, value in each.details.items()}, "environment": dict(environment)}
