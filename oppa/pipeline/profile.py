"""Store the measured time and memory of a model's parts in a pipeline (FlexTrain, sections 4.1 and 4.4).

A model is a chain of parts: what precedes the layers, each layer, and what follows them with the loss. The loss may be several parts
(`oppa.pipeline.stage_layout`). A stage is a range of parts, so the passes of one pipeline predict those of any other.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, Self

from oppa.pipeline.costs import WEIGHT_MEMORY
from oppa.pipeline.stage_layout import LAYERS, plain
from oppa.problem.bounds import LARGEST

_COUNTS, _MOST = {"micro_batch": 1, "pp": 1, "dp": 1, "zero_stage": 0}, 1e18
"""Least values of whole numbers, and the largest number of seconds or bytes that is read."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Describes one part of the chain, for one micro-batch on one rank."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    """Seconds of the gradients of inputs and weights, computed together."""
    input_s: float | None = None
    """Seconds of the first half of a split backward pass; None if no split pass was measured."""
    weight_s: float | None = None
    """Seconds of the second half of a split backward pass; None if no split pass was measured."""
    held_bytes: float = 0.0
    """Bytes that the forward pass leaves for the backward pass."""
    for_weights_bytes: float | None = None
    """Bytes that the second half needs; None if no split pass was measured.

    They may exceed `held_bytes`, because gradients between operations are kept for the second half, too.
    """
    forward_working_bytes: float = 0.0
    """Peak bytes while the forward pass runs, relative to its beginning."""
    backward_working_bytes: float = 0.0
    """Peak bytes while the backward pass runs, relative to its beginning."""
    weight_bytes: int = 0
    """Bytes of its parameters if replicas do not shard them."""
    optimizer_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageTime:
    """Models the seconds of a message: a latency, and a time for each byte."""

    latency_s: float = 0.0
    byte_s: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds of a message."""
        return self.latency_s + self.byte_s * size_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineProfile:
    """Holds measurements of a run's first steps on all ranks."""

    parts: tuple[Part, ...]
    """Parts of the model, one for each letter of the chain."""
    micro_batch: int
    pp: int
    dp: int
    zero_stage: int
    step_s: float
    """Median seconds of the profiled steps."""
    passes_s: float
    """Median seconds from the first pass of a step to its last, on the rank where that took longest."""
    update_byte_s: float = 0.0
    """Seconds of the optimizer for each byte of weights that a rank updates."""
    boundary_bytes: int = 0
    """Bytes that a stage sends for one micro-batch."""
    point_to_point: MessageTime = MessageTime()
    all_reduce: MessageTime = MessageTime()
    """Time of an all-reduce between two ranks."""
    between_s: float = 0.0
    """Seconds between two passes of a rank, without the time that it waits for other ranks."""
    letters: str = ""
    """Letters of the model's parts (`oppa.pipeline.stage_layout`); empty means a plain chain."""

    @property
    def chain(self) -> str:
        """Return a letter for each part."""
        return self.letters or plain(len(self.parts) - 2)

    @property
    def layers(self) -> int:
        """Return the number of layers, prediction heads included."""
        return sum(letter in LAYERS for letter in self.chain)

    @property
    def divisions(self) -> int:
        """Return the number of parts that compute; no more stages than these can have work."""
        return sum(part.forward_s + part.backward_s > 0 for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @property
    def costs(self) -> list[float]:
        """Return the seconds of both passes of each part, shape (parts,)."""
        return [part.forward_s + part.backward_s for part in self.parts]

    @functools.cached_property
    def halves(self) -> tuple[float, float]:
        """Return the times of the halves of a split backward pass, as shares of a whole one.

        They apply to parts without a measured split pass. They come from the layers that have one; they are 0.5 each if none has.
        """
        seen = [part for part in self._layers if part.input_s is not None and part.weight_s is not None]
        whole_s = sum(part.backward_s for part in seen)
        if not whole_s:
            return 0.5, 0.5
        return sum(part.input_s or 0.0 for part in seen) / whole_s, sum(part.weight_s or 0.0 for part in seen) / whole_s

    @functools.cached_property
    def kept(self) -> float:
        """Return the bytes that the second half needs as a share of `held_bytes`, for parts without a measured split pass.

        The share comes from the layers that have one; it is WEIGHT_MEMORY if none has.
        """
        seen = [part for part in self._layers if part.for_weights_bytes is not None and part.held_bytes]
        held = sum(part.held_bytes for part in seen)
        return sum(part.for_weights_bytes or 0.0 for part in seen) / held if held else WEIGHT_MEMORY

    @property
    def _layers(self) -> list[Part]:
        return [part for part, letter in zip(self.parts, self.chain, strict=True) if letter in LAYERS]

    def split_s(self, part: Part) -> tuple[float, float]:
        """Return the seconds of both halves of a part's backward pass."""
        inputs, weights = self.halves
        if part.input_s is None or part.weight_s is None:
            return part.backward_s * inputs, part.backward_s * weights
        return part.input_s, part.weight_s

    def kept_bytes(self, part: Part) -> float:
        """Return the bytes that the second half of a part's backward pass needs."""
        return part.held_bytes * self.kept if part.for_weights_bytes is None else part.for_weights_bytes

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_dict`; raises TypeError, KeyError or ValueError for other values, as of a damaged file."""
        links = {name: MessageTime(**values[name]) for name in ("point_to_point", "all_reduce")}
        parts = tuple(Part(**part) for part in values["parts"])
        if len(parts) < 3 or len(values.get("letters") or parts) != len(parts):
            raise ValueError(f"{len(parts)} parts")
        found = cls(**{**values, **links, "parts": parts})
        records: tuple[PipelineProfile | MessageTime | Part, ...] = (found, found.point_to_point, found.all_reduce, *parts)
        for record in records:
            _require_numbers(record)
        if not re.fullmatch(f"E[{LAYERS}L]*[{LAYERS}][{LAYERS}L]*", found.chain):
            raise ValueError(f"`letters = {found.letters!r:.100}`")
        return found


def _require_numbers(record: PipelineProfile | MessageTime | Part) -> None:
    """Raise TypeError or ValueError unless numbers are numbers, finite and within bounds; only optional ones may be None."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name in ("parts", "letters", "point_to_point", "all_reduce") or (value is None and field.default is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int if field.name in _COUNTS else int | float):
            raise TypeError(f"`{field.name} = {value!r:.100}`")
        least, most = (_COUNTS[field.name], LARGEST) if field.name in _COUNTS else (-_MOST, _MOST)
        if not least <= value <= most:
            raise ValueError(f"`{field.name} = {value!r:.100}`")
