"""Define a row of the table: the throughput of one (S, B_g, B_m), and a line of `table.csv` that reads back as the same row.

Notation (COPUS section 2.1):
    S      parallel strategy: all of a configuration but its two batch sizes
    B_g    global batch, sequences per optimizer step
    B_m    micro-batch, sequences per rank at once
"""

import dataclasses
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

from oppa.problem.configuration import PARAMETERS, Configuration, kinds
from oppa.regular_file import parse_json

_Number = TypeVar("_Number", int, float)
Source = Literal["measured", "predicted"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStrategy:
    """Holds a parallel strategy S: the layout of the ranks and every knob except the batch sizes.

    A change between two configurations of one strategy needs no other layout.
    """

    layout: Configuration
    """The configuration with batch sizes of 0."""

    @classmethod
    def of(cls, configuration: Configuration) -> Self:
        """Return the strategy of a configuration."""
        return cls(layout=dataclasses.replace(configuration, global_batch=0, micro_batch=0))

    @property
    def id(self) -> str:
        """Return the id of its configurations without the micro-batch: `dp2_tp1_pp2_z1_mc2`."""
        return self.layout.id.replace("_mbs0", "")


_KNOBS = operator.attrgetter(*(each.name for each in dataclasses.fields(Configuration) if each.name not in ("global_batch", "micro_batch")))


def same_strategy(one: Configuration, other: Configuration) -> bool:
    """Return True if two configurations have one parallel strategy, without the time to make both strategies."""
    return bool(_KNOBS(one) == _KNOBS(other))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Holds the throughput of a configuration, as a log-normal distribution around a median."""

    configuration: Configuration
    steps_per_s: float
    """Median, in steps per second."""
    log_stddev: float
    """Standard deviation of the logarithm of the true throughput around the median."""
    memory_bytes: int | None
    """Peak memory, maximum over ranks; None if unknown."""
    source: Source
    trials: tuple[int, ...] = ()
    """Ids of the study's trials that the row rests on; empty if it is predicted."""

    @property
    def strategy(self) -> ParallelStrategy:
        """Return the strategy S of this row."""
        return ParallelStrategy.of(self.configuration)

    @property
    def samples_per_s(self) -> float:
        """Return T of COPUS eq. 3: sequences per second."""
        return self.steps_per_s * self.configuration.global_batch

    @property
    def stddev(self) -> float:
        """Return the standard deviation of `steps_per_s`, steps per second, of a log-normal distribution with this median."""
        variance = self.log_stddev**2
        return self.steps_per_s * math.sqrt(math.expm1(variance) * math.exp(variance))

    def to_csv(self, extras: Iterable[str] = ()) -> list[str]:
        """Return the cells of the row, in the order of `columns(extras)`."""
        derived = {"devices": self.configuration.devices, "trials": " ".join(map(str, self.trials))}
        cells = {**self.configuration.to_dict(), **derived}
        return [_spell(cells[name] if name in cells else getattr(self, name)) for name in columns(extras)]

    @classmethod
    def from_csv(cls, cells: Mapping[str, str], extras: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Self:
        """Return the row that `to_csv` wrote.

        Args:
            cells: Texts by column; a parameter without a column has its default.
            extras: What the table states of each extra parameter, as `described` returns it.

        Raises:
            KeyError, TypeError, ValueError: the cells are others.
        """
        stated = (name for name in PARAMETERS if name in cells or name in _NEEDED)
        known: dict[str, Any] = {name: _read(cells[name], kinds()[name]) for name in stated}
        if extras:
            known |= {name: _read(cells[name], _TYPES[facts["type"]]) for name, facts in extras.items()}
            known["knobs"] = {name: {key: value for key, value in facts.items() if key != "type"} for name, facts in extras.items()}
        return cls(
            configuration=Configuration.checked(known),
            steps_per_s=_bounded("steps_per_s", float(cells["steps_per_s"]), math.ulp(0.0), sys.float_info.max),
            log_stddev=_bounded("log_stddev", float(cells["log_stddev"]), 0, 10),
            memory_bytes=_bounded("memory_bytes", int(cells["memory_bytes"]), 0, 1 << 60) if cells["memory_bytes"] else None,
            source=_SOURCES[cells["source"]],
            trials=tuple(_bounded("trials", int(each), 0, 1 << 53) for each in cells["trials"].split()),
        )


_SOURCES: dict[str, Source] = {"measured": "measured", "predicted": "predicted"}
_NEEDED = tuple(field.name for field in dataclasses.fields(Configuration) if field.default is dataclasses.MISSING)
_ESTIMATES = ("steps_per_s", "samples_per_s", "stddev", "log_stddev", "memory_bytes", "source", "trials")
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str)}


def columns(extras: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the columns of `table.csv`: one per parameter, then the estimates.

    Columns that follow from others are written for people, and not read.
    """
    return ("devices", *PARAMETERS, *extras, *_ESTIMATES)


def described(rows: Sequence[TableRow]) -> dict[str, dict[str, Any]]:
    """Return what a table states of its extra parameters, so that their columns can be read: the type, and the facts of `ExtraValue`.

    All rows have the same ones. A type is float if some value is.
    """
    first = rows[0].configuration.extras if rows else ()
    types = {extra.name: {type(row.configuration[extra.name]) for row in rows} for extra in first}
    return {extra.name: {"type": (float if float in types[extra.name] else type(extra.value)).__name__, **extra.facts} for extra in first}


def _spell(value: Any) -> str:
    """Return a cell: floats with all their digits, an empty text for None."""
    return "" if value is None else float.__repr__(value) if isinstance(value, float) else str(value)


def _read(text: str, kind: Any) -> Any:
    """Return the value of a cell. The size of a bucket may be an integer or a float, and ids distinguish the two."""
    return text if kind is str else text == "True" if kind is bool else parse_json(text)


def _bounded(name: str, value: _Number, least: float, most: float) -> _Number:
    """Return a number between two bounds; raises ValueError for others, and for NaN."""
    if not least <= value <= most:
        raise ValueError(f"`{name} = {value}` is not between {least:g} and {most:g}")
    return value
