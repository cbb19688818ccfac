"""What it costs to watch a training run, to change it, and to know what a change is worth: the figures of `oppa bench control`.

A part measures some of the figures; another one is another entry of PARTS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oppa.bench import resharding, step_overhead
from oppa.bench.profile_real import RealComparison, active_profile
from oppa.bench.resharding import Speedup, speedups
from oppa.bench.step_overhead import BATCHES, ON_CPU, STATISTICS, Kind, Overhead, on_cuda, overheads
from oppa.errors import InputError, nearest
from oppa.problem.machine import this_machine
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
    return of_overheads(STATISTICS, "statistics", overheads(STATISTICS, ON_CPU, PAIRS_PER_REPEAT * repeats, tell))


def cuda_part(repeats: int, tell: Tell) -> Found:
    """What gradient statistics and changes of batch sizes cost on one CUDA device, where there is one."""
    if not (places := on_cuda(this_machine())):
        tell("no CUDA device here: nothing is measured on one")
        return Found(figures={}, sections=[], details={})
    parts = [
        of_overheads(kind, name, overheads(kind, places, PAIRS_PER_REPEAT * repeats, tell))
        for kind, name in ((STATISTICS, "statistics_on_cuda"), (BATCHES, "batches_on_cuda"))
    ]
    return Found(
        figures={name: value for each in parts for name, value in each.figures.items()},
        sections=[section for each in parts for section in each.sections],
        details={name: value for each in parts for name, value in each.details.items()},
    )


def resharding_part(repeats: int, tell: Tell) -> Found:
    """What a change of layout costs."""
    return of_speedups(speedups(repeats, tell))


def profile_part(repeats: int, tell: Tell) -> Found:
    """What an active profile costs and loses, against an exhaustive one."""
    return of_comparison(active_profile(tell, repeats=max(repeats, LEAST_AGAIN)))


PARTS: Mapping[str, Part] = {"statistics": statistics_part, "cuda": cuda_part, "resharding": resharding_part, "profile": profile_part}


def chosen(names: Sequence[str] | None) -> Mapping[str, Part]:
    """Return some of PARTS, all if no names are given; raises InputError for a name that none has."""
    for name in names or ():
        if name not in PARTS:
            raise InputError(f"`{name}` is no part of this benchmark", hint=nearest(name, PARTS))
    return {name: part for name, part in PARTS.items() if names is None or name in names}


def of_overheads(kind: Kind, name: str, found: Sequence[Overhead]) -> Found:
    """The largest overhead at any place; `name` is what figures and details are called by."""
    return Found(
        figures={f"{name}_overhead": max(each.median for each in found)},
        sections=[step_overhead.section(kind, found)],
        details={name: [each.to_dict() for each in found]},
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
