"""What the parts of a model were seen to take and to hold in a pipeline (FlexTrain, sections 4.1 and 4.4).

A model is a chain of parts: what comes before the layers, each layer, and what comes behind them with the loss; a loss may be several
(`oppa.pipeline.stage_layout`). A stage is a range of them, so what one pipeline's passes took tells what any other's will.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

from oppa.pipeline.costs import WEIGHT_MEMORY
from oppa.pipeline.stage_layout import LAYERS, plain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the chain, for one micro-batch on one rank."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    """Gradients of inputs and weights in one go."""
    input_s: float | None = None
    """The first half of a backward pass that is split; None: none was seen that was."""
    weight_s: float | None = None
    """The second half."""
    held_bytes: float = 0.0
    """What the forward pass leaves for the backward pass."""
    for_weights_bytes: float | None = None
    """What the second half needs, which may be more: gradients between its operations are kept for it, too. None: none was seen."""
    forward_working_bytes: float = 0.0
    """Beyond what it began with, at the most, while the forward pass runs."""
    backward_working_bytes: float = 0.0
    weight_bytes: int = 0
    """Of its parameters, where replicas do not share them out."""
    optimizer_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How long a message takes: so long to begin with, and so long for each byte."""

    latency_s: float = 0.0
    byte_s: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """Of a message."""
        return self.latency_s + self.byte_s * size_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A run's first steps, as they were seen on all ranks."""

    parts: tuple[Part, ...]
    """Before the layers, each layer, behind them: one for each letter of the chain."""
    micro_batch: int
    pp: int
    dp: int
    zero_stage: int
    step_s: float
    """Of the steps that were looked at, the median."""
    passes_s: float
    """From the first pass of a step to its last, on the rank where that took longest; median."""
    update_byte_s: float = 0.0
    """Of the optimizer, for each byte of weights that a rank updates."""
    boundary_bytes: int = 0
    """Of what a stage sends for a micro-batch."""
    point_to_point: Link = Link()
    all_reduce: Link = Link()
    """Among two ranks."""
    between_s: float = 0.0
    """From one pass of a rank to the next, besides what it waits for others."""
    letters: str = ""
    """The model's chain, a letter for each part (`oppa.pipeline.stage_layout`); a plain one unless given."""

    @property
    def chain(self) -> str:
        """A letter for each part."""
        return self.letters or plain(len(self.parts) - 2)

    @property
    def layers(self) -> int:
        """L, prediction heads included."""
        return sum(letter in LAYERS for letter in self.chain)

    @property
    def divisions(self) -> int:
        """All parts that compute: what a pipeline can share out."""
        return sum(part.forward_s + part.backward_s > 0 for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @property
    def costs(self) -> list[float]:
        """Seconds of both passes of each part, shape (L + 2,)."""
        return [part.forward_s + part.backward_s for part in self.parts]

    @functools.cached_property
    def halves(self) -> tuple[float, float]:
        """What the halves of a split backward pass take, as shares of a whole one; of parts that were not seen to be split.

        As the layers that were; half each, if none was.
        """
        seen = [part for part in self._layers if part.input_s is not None and part.weight_s is not None]
        whole_s = sum(part.backward_s for part in seen)
        if not whole_s:
            return 0.5, 0.5
        return sum(part.input_s or 0.0 for part in seen) / whole_s, sum(part.weight_s or 0.0 for part in seen) / whole_s

    @functools.cached_property
    def kept(self) -> float:
        """What the second half needs, as a share of what is held; likewise."""
        seen = [part for part in self._layers if part.for_weights_bytes is not None and part.held_bytes]
        held = sum(part.held_bytes for part in seen)
        return sum(part.for_weights_bytes or 0.0 for part in seen) / held if held else WEIGHT_MEMORY

    @property
    def _layers(self) -> list[Part]:
        return [part for part, letter in zip(self.parts, self.chain, strict=True) if letter in LAYERS]

    def split_s(self, part: Part) -> tuple[float, float]:
        """Both halves of the backward pass of a part."""
        inputs, weights = self.halves
        if part.input_s is None or part.weight_s is None:
            return part.backward_s * inputs, part.backward_s * weights
        return part.input_s, part.weight_s

    def kept_bytes(self, part: Part) -> float:
        """What the second half of the backward pass of a part needs."""
        return part.held_bytes * self.kept if part.for_weights_bytes is None else part.for_weights_bytes

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; raises TypeError, KeyError or ValueError for anything else."""
        links = {name: Link(**values[name]) for name in ("point_to_point", "all_reduce")}
        parts = tuple(Part(**part) for part in values["parts"])
        if len(parts) < 3 or len(values.get("letters") or parts) != len(parts):
            raise ValueError(f"{len(parts)} parts")
        return cls(**{**values, **links, "parts": parts})
