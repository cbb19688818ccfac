"""Compute the training state that each rank of a layout holds: the boxes of weights and of their optimizer moments.

This needs no process group, only the model, the configuration and the rank. Tensors have global names (experts a name and a number), so
that two layouts name the same tensor alike. Buffers are not part of the state: a user's module creates them again by its constructor.

    tensor parallel   a part of one dimension if the module defines one (`pieces`), else the whole tensor
    pipeline          the parts of the rank's stages; the first and the last stage both hold a tied embedding
    experts           the experts that belong to the rank's index among its `ep` ranks
    zero_stage 1      all weights, and the moments of the parameters that ZeroRedundancyOptimizer assigns to the rank
    zero_stage 2, 3   an equal share of the rows of every parameter and of its moments, as FSDP2 splits them
    dp_shard          ZeRO counts only the replicas of a group; other groups hold the same
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from oppa.pipeline.from_configuration import stages_of
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import Slice
from oppa.training.model.tensor_slices import Box, Piece, elements
from oppa.training.model.user_module import parts_of
from oppa.training.model.weights import pieces_of
from oppa.training.parallel.data_parallel import of_expert
from oppa.training.parallel.extra_parameters import context_parallel, shards_of
from oppa.training.parallel.mesh import peers
from oppa.training.parallel.optimizer import decays
from oppa.training.parallel.pipeline_parallel import numbers_of
from oppa.training.parallel.user_stages import UserStage

WEIGHT, ADAM = "weight", ("exp_avg", "exp_avg_sq")


@dataclasses.dataclass(frozen=True, slots=True)
class TensorKey:
    """Identifies a whole tensor of the training state: `weight` or torch's name of a moment, and the weight's global name."""

    kind: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Describes a box of a whole tensor that a rank holds, and its position: the box `at` of the rank's part of `parameter`."""

    key: TensorKey
    shape: tuple[int, ...]
    dtype: torch.dtype
    box: Box
    parameter: str
    at: Box

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return elements(self.box) * self.dtype.itemsize


Layout = tuple[tuple[Shard, ...], ...]
"""Holdings of each rank, one tuple per rank."""


@functools.lru_cache(8)
def layout_of(model: Model, configuration: Configuration, moments: tuple[str, ...] = ADAM) -> Layout:
    """Return the shards of every rank of a configuration."""
    return tuple(held_by(model, configuration, rank, moments) for rank in range(configuration.devices))


def held_by(model: Model, configuration: Configuration, rank: int, moments: tuple[str, ...] = ADAM) -> tuple[Shard, ...]:
    """Return the shards of one rank of a configuration."""
    dp, slices, stages, _, replica, shard, _ = (ranks.index(rank) for ranks in peers(configuration, rank))
    tp, ep, cp = Slice(slices, configuration.tp), Slice(dp % configuration.ep, configuration.ep), context_parallel(configuration)
    parts = stages_of(configuration, model)
    parameters = [parameter for stage in numbers_of(configuration, stages) for parameter in _parameters(model, parts[stage], tp, ep)]
    dense = [parameter for parameter in parameters if configuration.ep == 1 or not of_expert(parameter.name)]
    spread = [parameter for parameter in parameters if configuration.ep > 1 and of_expert(parameter.name)]
    of_expert_replicas = Slice(dp // configuration.ep * cp + replica % cp, configuration.dp * cp // configuration.ep)
    shares = (dense, Slice(shard, shards_of(configuration))), (spread, of_expert_replicas)
    return tuple(shard for group, share in shares for shard in _share(group, share, configuration.zero_stage, moments))


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    """Describes a parameter of a stage before ZeRO shards it; its rows are the rows of its pieces in order."""

    name: str
    dtype: torch.dtype
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return sum(elements(piece.box) for piece in self.pieces)

    @property
    def rows(self) -> range | None:
        """Return the range of rows; None for a tensor without dimensions."""
        return range(sum(len(piece.box[0]) for piece in self.pieces)) if self.pieces[0].shape else None


@functools.lru_cache(1024)
def _parameters(model: Model, parts: range, tp: Slice, ep: Slice) -> tuple[_Parameter, ...]:
    """Return the parameters of the stage with these parts, in the order in which the optimizer gets them."""
    with torch.device("meta"):
        stage = _own_stage(model, parts) if model.entry_point else ModelStage(model, parts, tp, ep=ep)
    return tuple(_Parameter(name, parameter.dtype, tuple(pieces_of(stage, name))) for name, parameter in stage.named_parameters())


def _own_stage(model: Model, parts: range) -> nn.Module:
    made = parts_of(model)
    return UserStage(parts, model.layers, lambda part, *index: getattr(made, part)(*index))


def _share(parameters: Sequence[_Parameter], share: Slice, zero_stage: int, moments: tuple[str, ...]) -> Iterator[Shard]:
    """Yield the shards of one replica, number `share.index` of `share.size`, for parameters that all of these replicas train."""
    owners = _owners(parameters, share.size)
    for parameter, owner in zip(parameters, owners, strict=True):
        boxes = list(_pieces(parameter, share if zero_stage >= 2 else Slice()))
        for kind in (WEIGHT, *moments) if zero_stage != 1 or owner == share.index else (WEIGHT,):
            for piece, at in boxes:
                key = TensorKey(kind, piece.name)
                yield Shard(key=key, shape=piece.shape, dtype=parameter.dtype, box=piece.box, parameter=parameter.name, at=at)


def _owners(parameters: Sequence[_Parameter], replicas: int) -> list[int]:
    """Return the replica that updates each parameter, by ZeroRedundancyOptimizer's rule.

    In each group of parameters (`groups_of`), the largest comes first, and goes to the smallest load.
    """
    owners, loads = [0] * len(parameters), [0] * replicas
    order = {number: (not decays(len(one.pieces[0].shape)), -one.elements) for number, one in enumerate(parameters)}
    for number in sorted(order, key=order.__getitem__):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += parameters[number].elements
    return owners


def _pieces(parameter: _Parameter, share: Slice) -> Iterator[tuple[Piece, Box]]:
    """Yield a replica's part of each piece, and its position. `torch.chunk`'s rule may give the last replicas fewer rows or none."""
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
