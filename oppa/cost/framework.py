"""Load what a framework keeps in memory and sends over links, from `priors/frameworks/*.toml`.

Formats of weights, gradients and optimizer states are facts of a framework's source. What is uncertain, such as the copies of the logits,
are coefficients that a framework may override like a device does.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from oppa import catalog
from oppa.cost.coefficients import Belief, CoefficientTable, load_beliefs
from oppa.errors import InputError, require_known
from oppa.problem.candidates import Candidates
from oppa.problem.declaration import Count, DeclaredTable, Source, parse, read, spell, validate
from oppa.problem.space import FRAMEWORKS

DEFAULT = "other"
"""Framework of a job or a row that states none."""
MODELS = ("step_time", "memory")
"""Names of the files under `priors/` whose coefficients a device or a framework may override."""
COLUMNS = (
    *("cp", "cp_mode", "etp", "dispatcher", "overlap_ep", "gradients", "moments"),
    *("shard", "sequence_parallel", "recompute_layers", "recompute_modules"),
    *("attention", "loss", "residuals", "norms", "expert_products", "offload", "precision"),
    *("overlap_tp", "compiled", "cuda_graphs", "offload_parameters", "hpz", "quantized_weights", "quantized_gradients", "fp8_weights"),
)
"""Columns of the cost model that a search space may have as parameters of its own, besides those that are fields of a configuration.

Rows have all of them but `offload_parameters`, for frameworks that offload parameters and optimizer states by two parameters.
"""
Share = Annotated[float, Field(gt=0, le=1)]
_Number = Annotated[float, Field(ge=0)]


class _Bytes(DeclaredTable):
    """Validates the bytes that a framework keeps of each weight in mixed precision."""

    weight: _Number
    gathered_weight: _Number
    sharded_weight: _Number
    gradient: _Number
    master: _Number
    reduced: _Number
    eight_bit_copy: _Number = 0.0
    source: Source


class _Sharding(DeclaredTable):
    gradients_sharded_from: Count
    gradients_scattered_from: Literal[1, 2] = 1
    gathered_layers: _Number
    gathered_parameters: _Number = 0.0
    gathers_ends: bool = False
    gathers_each_micro_batch: bool = False
    gradient_layers: _Number = 0.0
    frozen_unit_inputs: _Number = 0.0
    prefetches: bool
    reduces_each_micro_batch: bool
    pipelines_reduce_once: bool = False
    keeps_gradient_buffer: bool
    update_copies: _Number
    moved_per_micro_batch: _Number = 0.0
    source: Source


class _Stall(DeclaredTable):
    probability_per_host: Share
    seconds: Annotated[float, Field(gt=0)]
    source: Source


class _Column(DeclaredTable):
    """Validates where a column of the cost model comes from in a search space: a parameter, or a constant."""

    parameter: str | list[str] = ""
    """Name of the parameter, or its names in different search spaces; empty: the column's name."""
    means: dict[str, str] = Field(default_factory=dict)
    """Value of the column for a value of the parameter; `*` stands for all others, which are themselves without it."""
    divides: str = ""
    """Parameter that this one divides to give the column."""
    constant: str = ""
    only: dict[str, str] = Field(default_factory=dict)
    """Values of other parameters without which the column is 0."""

    @property
    def parameters(self) -> list[str]:
        """Return the names of the parameter."""
        return self.parameter if isinstance(self.parameter, list) else [self.parameter] if self.parameter else []


class _File(DeclaredTable):
    description: str
    sequence_parallel: bool
    balanced_stages: bool = False
    overlaps_tp_backward: bool = False
    separate_experts: bool = False
    gathers_eight_bit: bool = False
    overlaps_interleaved_p2p: bool = False
    fused_gate: bool = False
    eight_bit_saving: Annotated[float, Field(ge=0, lt=1)] = 0.3
    selective: Literal["scores", "attention", "operations"] = "scores"
    usable_share: Share
    bytes_per_weight: _Bytes
    sharding: _Sharding
    stall: _Stall | None = None
    columns: dict[str, _Column] = Field(default_factory=dict)
    coefficients: dict[str, CoefficientTable] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPrior:
    """Describes how a framework trains in mixed precision; sizes are bytes per weight."""

    name: str
    description: str
    sequence_parallel: bool
    """Sequence parallelism accompanies tensor parallelism in a row that does not state it."""
    balanced_stages: bool
    """Stages are cut so that the output projection counts, unless a row states otherwise; if not, they have equally many layers."""
    overlaps_tp_backward: bool
    """Tensor-parallel communication of inputs and their gradients overlaps the backward pass's matrix products."""
    separate_experts: bool
    """The experts of a layer are computed one by one, so that each adds to what a host launches."""
    gathers_eight_bit: bool
    """Tensor-parallel ranks gather the inputs of 8-bit matrix products in 8 bits, under sequence parallelism."""
    overlaps_interleaved_p2p: bool
    """Sends of interleaved stages overlap computation in a row that does not state it."""
    fused_gate: bool
    """One operation computes the activation and the gate, and keeps its inputs alone for the backward pass."""
    eight_bit_saving: float
    """Share of a layer's activations that 8-bit training saves: if it keeps inputs of linear layers, about 60% of all, in one byte."""
    selective: str
    """One of SELECTIVE: the operations that selective recomputation repeats."""
    usable_share: float
    """Share of a device's memory that the predicted bytes can fill; the rest is fragments, and what lies outside torch's allocator."""
    weight_bytes: float
    """A weight that a rank holds below ZeRO 3, without the optimizer's own copy."""
    gathered_weight_bytes: float
    """A weight as it is gathered for the passes."""
    sharded_weight_bytes: float
    """A weight between passes under ZeRO 3, without the optimizer's own copy."""
    gradient_bytes: float
    """A gradient, its accumulated copy included."""
    master_bytes: float
    """The optimizer's own copy of the weight."""
    reduced_bytes: float
    """A gradient as replicas exchange it."""
    eight_bit_copy_bytes: float
    """The copies of a layer's weight that 8-bit training keeps in addition to it."""
    gradients_sharded_from: int
    """ZeRO stage from which a rank keeps only its share of the gradients."""
    gradients_scattered_from: int
    """ZeRO stage from which gradients are reduced into shards; below it, every rank gets all of them."""
    gathered_layers: float
    """Layers whose weights or gradients are whole at the same time under ZeRO 3."""
    gathers_ends: bool
    """Embedding and output projection are gathered at the loss under ZeRO 3, and the gradient of the latter is whole."""
    gathers_each_micro_batch: bool
    """Weights are gathered for each micro-batch under ZeRO 2, not after the update alone."""
    gradient_layers: float
    """Number of gathered layers whose gradients are whole; frozen weights have none."""
    gathered_parameters: float
    """Weights that stay gathered under ZeRO 3, if they are more than those layers."""
    frozen_unit_inputs: float
    """Gradients of the input of a recomputed unit of frozen weights that ZeRO 3 keeps until the backward pass ends."""
    prefetches: bool
    """Gathers of ZeRO 3 overlap the passes of the layers before."""
    reduces_each_micro_batch: bool
    """Gradients are exchanged after each micro-batch from ZeRO 2 on, not after the last."""
    pipelines_reduce_once: bool
    """Stages of a pipeline keep gathered weights and whole gradients until their last micro-batch all the same."""
    keeps_gradient_buffer: bool
    """Gradients have a buffer that lives through the whole step. Otherwise they appear as activations are freed."""
    update_copies: float
    """Copies of the trained weights, in the optimizer's format, that the update computes with."""
    moved_per_micro_batch: float
    """Bytes per trained weight that each micro-batch moves apart from its matrix products: copies of gathered weights, and sums of
    gradients."""
    stall_probability_per_host: float
    """Probability that a host is slow in a run, so that every micro-batch of a pipeline over hosts waits."""
    stall_s: float
    """Seconds that each micro-batch waits then."""
    coefficients: Mapping[str, Belief]
    """Coefficients that override the general ones under this framework."""
    _columns: Mapping[str, _Column] = dataclasses.field(default_factory=dict, repr=False)

    def usual(self, column: str) -> str:
        """Return what an absent column means under this framework; empty if its file states nothing."""
        return self._columns[column].constant if column in self._columns else ""

    def reads(self, names: Iterable[str]) -> set[str]:
        """Return those of these parameters that give one of the columns COLUMNS: the cost model predicts their effect."""
        own = {*names}
        return {next((name for name in self._parameters_of(column) if name in own), "") for column in COLUMNS} & own

    def columns(self, candidates: Candidates) -> dict[str, NDArray[Any]]:
        """Return the columns COLUMNS of the candidates, each of shape (n,), as far as their search space has parameters for them.

        A parameter has the column's name unless the framework's file states another.
        """
        found = {}
        for name in COLUMNS:
            stated = self._columns.get(name, _Column())
            values = _column(candidates, self._parameters_of(name))
            if values is not None:
                translated = _translated(stated, values, candidates)
                found[name] = np.where(_applies(stated, candidates), translated, 0) if stated.only else translated
            elif stated.constant:
                found[name] = np.full(len(candidates), stated.constant)
        return found

    def _parameters_of(self, column: str) -> list[str]:
        """Return the names that the parameter of a column may have, the preferred one first."""
        stated = self._columns.get(column)
        return (stated.parameters if stated else []) or [column]


def _column(candidates: Candidates, parameters: Sequence[str]) -> NDArray[Any] | None:
    """Return the values of the first of the parameters that the search space has, shape (n,); None if it has none of them."""
    for name in parameters:
        if name in candidates.space.names:
            return candidates.column(name)
        if name in candidates.space.settled:
            return np.full(len(candidates), candidates.space.settled[name])
    return None


def _applies(stated: _Column, candidates: Candidates) -> NDArray[np.bool_]:
    """Return in which candidates the other parameters have the values that the column needs, shape (n,)."""
    met = np.ones(len(candidates), dtype=bool)
    for name, wanted in stated.only.items():
        values = _column(candidates, [name])
        met &= values is not None and np.array([_word(value) == wanted for value in values.tolist()])
    return met


def _translated(stated: _Column, values: NDArray[Any], candidates: Candidates) -> NDArray[Any]:
    if stated.divides:
        quotient: NDArray[Any] = np.asarray(candidates.column(stated.divides)) // values
        return quotient
    if not stated.means:
        return values
    distinct, codes = np.unique(values, return_inverse=True)
    meanings = [stated.means.get(_word(value), stated.means.get("*", _word(value))) for value in distinct.tolist()]
    return np.array(meanings)[codes]


def _word(value: object) -> str:
    return value if isinstance(value, str) else spell(value)


def load_framework(name: str) -> FrameworkPrior:
    """Return the framework with this id.

    Raises:
        InputError: there is none; or its file has an unknown key, lacks a number or a source, or has a negative number.
    """
    path = catalog.find(FRAMEWORKS, name)
    return _framework(read(_File, path, error=InputError), path.stem, source=str(path))


def read_framework(name: str, text: str) -> FrameworkPrior:
    """Return the framework that a job's own file describes; raises InputError, as `load_framework` does, if the file is wrong."""
    source = f"{name}.toml"
    return _framework(validate(_File, parse(text, source=source, error=InputError), error=InputError, source=source), name, source=source)


def _framework(file: _File, name: str, *, source: str) -> FrameworkPrior:
    for key in file.columns:
        require_known(key, COLUMNS, f"`{source}`: `[columns]` has no key `{key}`")
    known = [key for model in MODELS for key in load_beliefs(model)]
    for key in file.coefficients:
        require_known(key, known, f"`{source}`: `[coefficients]` has no key `{key}`")
    sizes = file.bytes_per_weight.model_dump(exclude={"source"})
    return FrameworkPrior(
        name=name,
        **file.model_dump(exclude={"bytes_per_weight", "sharding", "stall", "columns", "coefficients"}),
        **{f"{key}_bytes": size for key, size in sizes.items()},
        **file.sharding.model_dump(exclude={"source"}),
        stall_probability_per_host=file.stall.probability_per_host if file.stall else 0.0,
        stall_s=file.stall.seconds if file.stall else 0.0,
        coefficients={key: table.record() for key, table in file.coefficients.items()},
        _columns=file.columns,
    )


def frameworks() -> list[str]:
    """Return the ids of all frameworks, in order."""
    return sorted(path.stem for path in (catalog.root() / FRAMEWORKS).glob("*.toml"))
