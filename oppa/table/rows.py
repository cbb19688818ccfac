"""A row of the table: what is believed of one (S, B_g, B_m), and a line of `table.csv` that reads back as the same row.

Notation (COPUS section 2.1):
    S      strategy: all of a configuration but its two batch sizes
    B_g    global batch, sequences per optimizer step
    B_m    micro-batch, sequences per rank at once
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from oppa.problem.configuration import Configuration

Source = Literal["measured", "predicted"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """S: the layout of the ranks and every knob beside the batch sizes. Two configurations of one strategy need no other layout."""

    layout: Configuration
    """Its batch sizes are 0."""

    @classmethod
    def of(cls, configuration: Configuration) -> Self:
        """The strategy of a configuration."""
        return cls(layout=dataclasses.replace(configuration, global_batch=0, micro_batch=0))

    @property
    def id(self) -> str:
        """As a configuration's, without its micro-batch: `dp2_tp1_pp2_z1_mc2`."""
        return self.layout.id.replace("_mbs0", "")

    def with_batches(self, global_batch: int, micro_batch: int) -> Configuration:
        """The configuration (S, B_g, B_m)."""
        return dataclasses.replace(self.layout, global_batch=global_batch, micro_batch=micro_batch)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The belief in the throughput of a configuration: a log-normal law around a median."""

    configuration: Configuration
    steps_per_s: float
    """Median of the belief."""
    log_stddev: float
    """Standard deviation of the logarithm of the true throughput around it."""
    memory_bytes: int | None
    """Peak, maximum over ranks; None: not known."""
    source: Source
    trials: tuple[int, ...] = ()
    """Ids of the study's trials that it rests on; none where it is predicted."""

    @property
    def strategy(self) -> Strategy:
        """S of this row."""
        return Strategy.of(self.configuration)

    @property
    def samples_per_s(self) -> float:
        """T of COPUS eq. 3: sequences per second."""
        return self.steps_per_s * self.configuration.global_batch

    @property
    def stddev(self) -> float:
        """Standard deviation of `steps_per_s`, steps per second; of a log-normal law with this median."""
        variance = self.log_stddev**2
        return self.steps_per_s * math.sqrt(math.expm1(variance) * math.exp(variance))

    def to_csv(self) -> list[str]:
        """Its cells, by `COLUMNS`."""
        derived = {"devices": self.configuration.devices, "trials": " ".join(map(str, self.trials))}
        cells = {**self.configuration.to_dict(), **derived}
        return [_spell(cells[name] if name in cells else getattr(self, name)) for name in COLUMNS]

    @classmethod
    def from_csv(cls, cells: Mapping[str, str]) -> Self:
        """The inverse of `to_csv`; raises KeyError or ValueError for what that has not written."""
        known = {name: _read(cells[name], kind) for name, kind in _KINDS.items() if name in cells or name != YOUNGER}
        return cls(
            configuration=Configuration(**known),
            steps_per_s=float(cells["steps_per_s"]),
            log_stddev=float(cells["log_stddev"]),
            memory_bytes=int(cells["memory_bytes"]) if cells["memory_bytes"] else None,
            source=_SOURCES[cells["source"]],
            trials=tuple(map(int, cells["trials"].split())),
        )


_KINDS = {field.name: field.type for field in dataclasses.fields(Configuration)}
YOUNGER = "stage_layout"
"""A knob that tables from before it do not have: it stands at its default there."""
_SOURCES: dict[str, Source] = {"measured": "measured", "predicted": "predicted"}
COLUMNS = ("devices", *_KINDS, "steps_per_s", "samples_per_s", "stddev", "log_stddev", "memory_bytes", "source", "trials")
"""Of `table.csv`: one for each knob, then what is believed. What follows from other columns is written for people, and not read."""


def _spell(value: Any) -> str:
    """A cell: floats with all their digits, nothing for None."""
    return "" if value is None else float.__repr__(value) if isinstance(value, float) else str(value)


def _read(text: str, kind: Any) -> Any:
    """The value of a knob; a size of a bucket may be whole or not, and ids tell the two apart."""
    return text if kind is str else text == "True" if kind is bool else json.loads(text)
