"""Measure the figures of `oppa bench control`: the costs of gradient statistics and of layout changes, and the regret of active profiles.

A part measures some of the figures; to add one, add an entry to PARTS.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.control import resharding, step_overhead
from experiments.control.resharding import Speedup, speedups
from experiments.control.step_overhead import BATCHES, ON_CPU, STATISTICS, AdditionalWork, Overhead, on_cuda, overheads
from experiments.profile.real import active_profile
from oppa.errors import require_known
from oppa.problem.detect import this_machine
from oppa.report.record import Section

PAIRS_PER_REPEAT = 40
"""Pairs of steps per repeat; these steps take seconds, as one restart does."""

LEAST_AGAIN = 3
"""Minimum number of independent measurements of each configuration that the profiles' tables choose."""

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """Holds the result of one part."""

    figures: Mapping[str, float]
    """Headline figures, as fractions."""
    sections: Sequence[Section]
    details: Mapping[str, Any]
    """Data that the figures are computed from, for JSON."""


Part = Callable[[int, Tell], PartResult]
"""A measurement that takes a number of repeats and a progress callback."""


def statistics_part(repeats: int, tell: Tell) -> PartResult:
    """Measure the cost of gradient statistics."""
    return of_overheads(STATISTICS, "statistics", overheads(STATISTICS, ON_CPU, PAIRS_PER_REPEAT * repeats, tell))


def cuda_part(repeats: int, tell: Tell) -> PartResult:
    """Measure the cost of gradient statistics and of batch-size changes on one CUDA device; the result is empty without a device."""
    if not (places := on_cuda(this_machine())):
        tell("this machine has no CUDA device, so none is measured")
        return PartResult(figures={}, sections=[], details={})
    parts = [
        of_overheads(kind, name, overheads(kind, places, PAIRS_PER_REPEAT * repeats, tell))
        for kind, name in ((STATISTICS, "statistics_on_cuda"), (BATCHES, "batches_on_cuda"))
    ]
    return PartResult(
        figures={name: value for each in parts for name, value in each.figures.items()},
        sections=[section for each in parts for section in each.sections],
        details={name: value for each in parts for name, value in each.details.items()},
    )


def profile_part(repeats: int, tell: Tell) -> PartResult:
    """Measure the largest regret of an active profile over the trajectories, and its share of an exhaustive profile's seconds."""
    found = active_profile(tell, repeats=max(repeats, LEAST_AGAIN))
    return PartResult(figures=found.figures, sections=[found.section], details={"profile": dataclasses.asdict(found)})


PARTS: Mapping[str, Part] = {
    "statistics": statistics_part,
    "cuda": cuda_part,
    "resharding": lambda repeats, tell: of_speedups(speedups(repeats, tell)),
    "profile": profile_part,
}


def chosen(names: Sequence[str] | None) -> Mapping[str, Part]:
    """Return the named parts, or all of PARTS if no names are given; raises InputError for an unknown name."""
    for name in names or ():
        require_known(name, PARTS, f"`{name}` is not a part of this benchmark")
    return {name: part for name, part in PARTS.items() if names is None or name in names}


def of_overheads(kind: AdditionalWork, name: str, found: Sequence[Overhead]) -> PartResult:
    """Return the largest overhead over all places.

    Args:
        name: Prefix of the figure, and key of the details.
    """
    return PartResult(
        figures={f"{name}_overhead": max(each.median for each in found)},
        sections=[step_overhead.section(kind, found)],
        details={name: [each.to_dict() for each in found]},
    )


def of_speedups(found: Sequence[Speedup]) -> PartResult:
    """Return the smallest speed-up of any layout change over an ordinary, cold restart."""
    return PartResult(
        figures={"reshard_speedup": min(each.median("cold") for each in found)},
        sections=resharding.sections(found),
        details={"resharding": [each.to_dict() for each in found]},
    )


def measure(repeats: int, tell: Tell, parts: Mapping[str, Part] = PARTS) -> list[PartResult]:
    """Run all parts in turn."""
    return [part(repeats, tell) for part in parts.values()]


def to_json(found: Iterable[PartResult], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures by name, followed by their details and the environment."""
    everything = list(found)
    figures = {name: value for each in everything for name, value in each.figures.items()}
    return {**figures, **{name: value for each in everything for name, value in each.details.items()}, "environment": dict(environment)}
