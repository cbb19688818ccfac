"""What each rank of a layout holds of the training state: which box of which weight, and of what the optimizer keeps of it.

Known without a process group, from the model, the configuration and the rank alone. Tensors go by global names (of experts, by name and
number), so that two layouts speak of the same. Buffers are no state: a module of one's own makes them as it made them first.

    tensor parallel   a part of one dimension, where the module says so (`pieces`); all of it elsewhere
    pipeline          the parts of the rank's stages; both end stages hold an embedding that is also the head
    experts           those of the rank's place among its `ep` ranks
    zero_stage 1      moments of the parameters that ZeroRedundancyOptimizer gives to the rank; all weights
    zero_stage 2, 3   an equal share of every parameter's rows, and of its moments, as FSDP2 cuts them
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from oppa.pipeline.configured import stages_of
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.boxes import Box, Piece, elements
from oppa.training.data_parallel import of_expert
from oppa.training.mesh import peers
from oppa.training.model import Stage
from oppa.training.own_module import OwnStage
from oppa.training.parts import parts_of
from oppa.training.pipeline_parallel import numbers_of
from oppa.training.tensor_parallel import Slice
from oppa.training.weights import pieces_of

WEIGHT, ADAM = "weight", ("exp_avg", "exp_avg_sq")


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A whole tensor of the training state: a weight, or a moment of it, by the name that torch has for it."""

    kind: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A box of a whole tensor that a rank holds, and the box `at` which it lies in what the rank has of its `parameter`."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype
    box: Box
    parameter: str
    at: Box

    @property
    def nbytes(self) -> int:
        """Size."""
        return elements(self.box) * self.dtype.itemsize


Layout = tuple[tuple[Holding, ...], ...]
"""The holdings of each rank."""


@functools.lru_cache(8)
def layout_of(model: Model, configuration: Configuration, moments: tuple[str, ...] = ADAM) -> Layout:
    """What every rank holds."""
    return tuple(held_by(model, configuration, rank, moments) for rank in range(configuration.devices))


def held_by(model: Model, configuration: Configuration, rank: int, moments: tuple[str, ...] = ADAM) -> tuple[Holding, ...]:
    """What a rank holds."""
    replicas, slices, stages = (ranks.index(rank) for ranks in peers(configuration, rank))
    tp, ep = Slice(slices, configuration.tp), Slice(replicas % configuration.ep, configuration.ep)
    parts = stages_of(configuration, model)
    parameters = [parameter for stage in numbers_of(configuration, stages) for parameter in _parameters(model, parts[stage], tp, ep)]
    dense = [parameter for parameter in parameters if configuration.ep == 1 or not of_expert(parameter.name)]
    spread = [parameter for parameter in parameters if configuration.ep > 1 and of_expert(parameter.name)]
    shares = (dense, Slice(replicas, configuration.dp)), (spread, Slice(replicas // configuration.ep, configuration.dp // configuration.ep))
    return tuple(holding for group, share in shares for holding in _share(group, share, configuration.zero_stage, moments))


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    """One of a stage's parameters before ZeRO shards it; its rows are those of its pieces, one after the other."""

    name: str
    dtype: torch.dtype
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return sum(elements(piece.box) for piece in self.pieces)

    @property
    def rows(self) -> range | None:
        """None for a tensor without dimensions."""
        return range(sum(len(piece.box[0]) for piece in self.pieces)) if self.pieces[0].shape else None


@functools.lru_cache(1024)
def _parameters(model: Model, parts: range, tp: Slice, ep: Slice) -> tuple[_Parameter, ...]:
    """Of the stage with these parts, in the order in which an optimizer is given them."""
    with torch.device("meta"):
        stage = _own_stage(model, parts) if model.entry_point else Stage(model, parts, tp, ep=ep)
    return tuple(_Parameter(name, parameter.dtype, tuple(pieces_of(stage, name))) for name, parameter in stage.named_parameters())


def _own_stage(model: Model, parts: range) -> nn.Module:
    made = parts_of(model)
    return OwnStage(parts, model.layers, lambda part, *index: getattr(made, part)(*index))


def _share(parameters: Sequence[_Parameter], share: Slice, zero_stage: int, moments: tuple[str, ...]) -> Iterator[Holding]:
    """What number `share` of so many replicas holds of parameters that all of them train."""
    owners = _owners(parameters, share.size)
    for parameter, owner in zip(parameters, owners, strict=True):
        boxes = list(_boxes(parameter, share if zero_stage >= 2 else Slice()))
        for kind in (WEIGHT, *moments) if zero_stage != 1 or owner == share.index else (WEIGHT,):
            for piece, at in boxes:
                key = Key(kind, piece.name)
                yield Holding(key=key, shape=piece.shape, dtype=parameter.dtype, box=piece.box, parameter=parameter.name, at=at)


def _owners(parameters: Sequence[_Parameter], replicas: int) -> list[int]:
    """Which replica updates each parameter: ZeroRedundancyOptimizer's rule, the largest first to whoever has least."""
    owners, loads = [0] * len(parameters), [0] * replicas
    for number in sorted(range(len(parameters)), key=lambda number: -parameters[number].elements):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += parameters[number].elements
    return owners


def _boxes(parameter: _Parameter, share: Slice) -> Iterator[tuple[Piece, Box]]:
    """What a replica holds of each piece, and where: rows by `torch.chunk`'s rule, so that the last replicas may have fewer or none."""
    if parameter.rows is None:
        yield parameter.pieces[0], ()
        return
    height = -(-len(parameter.rows) // share.size)
    mine = parameter.rows[height * share.index : height * (share.index + 1)]
    top = 0
    for piece in parameter.pieces:
        first, *others = piece.box
        rows = range(max(top, mine.start), min(top + len(first), mine.stop))
        if rows:
            box = (range(first.start + rows.start - top, first.start + rows.stop - top), *others)
            at = (range(rows.start - mine.start, rows.stop - mine.start), *(range(len(other)) for other in others))
            yield dataclasses.replace(piece, box=box), at
        top += len(first)
