"""What is asked of the cost model: columns of numbers, one row per configuration.

A configuration of a job and a row of somebody's table become the same thing here, so both are predicted by the same lines.
All columns are float64 tensors of shape (n,); sizes in bytes, times in seconds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.hardware import Hardware, hardware_of
from oppa.problem.candidates import Candidates
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.units import MIB

RECOMPUTE = ("none", "selective", "full")
_BUCKETS = ("dp_bucket_mb", "zero_bucket_mb")
_OVERLAPS = ("overlap_zero_comm", "overlap_zero_allgather", "overlap_p2p")
_CHOICES = ("schedule", "recompute", *_BUCKETS, *_OVERLAPS, "ep", "stage_layout")
AT_REST_MB = 25
"""Where a bucket that a space does not vary stands."""
_LAYOUT = ("dp", "tp", "pp", "model_chunks", "zero_stage", "micro_batch", "num_microbatches")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rows of a table whose columns are the fields."""

    def take(self, rows: Tensor | slice) -> Self:
        """Some of the rows."""
        return dataclasses.replace(self, **{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape(Columns):
    """The model: widths, and counts per layer and per token of it."""

    layers: Tensor
    hidden: Tensor
    kv_width: Tensor
    ffn: Tensor
    """Width of the feed-forward networks that a token passes, all together."""
    ffn_tensors: Tensor
    """Tensors of that width that the backward pass needs: 4 where gated, else 2."""
    vocab: Tensor
    seq_len: Tensor
    layer_parameters: Tensor
    expert_parameters: Tensor
    """Of these, the experts' that expert parallelism shares out; 0 without any."""
    layer_matmul_parameters: Tensor
    """Weights that a token is multiplied with."""
    routed: Tensor
    """Experts that each token is sent to; 0 without any."""
    attention_flops: Tensor
    """Scores and their product with the values, per token, forward."""
    embedding_parameters: Tensor
    head_parameters: Tensor
    """Those of the output projection, also where it is the embedding's."""
    tied: Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout(Columns):
    """The configuration."""

    dp: Tensor
    tp: Tensor
    pp: Tensor
    ep: Tensor
    model_chunks: Tensor
    zero_stage: Tensor
    micro_batch: Tensor
    num_microbatches: Tensor
    recompute: Tensor
    """0 none, 1 selective, 2 full."""
    bubble: Tensor
    """Micro-batches' time that a stage is idle per step: (pp - 1) / model_chunks, a third of it without bubbles of weight gradients."""
    in_flight: Tensor
    """Micro-batches whose activations the first stage keeps at once."""
    balanced: Tensor
    """Stages are cut so that the output projection has its share of the time; else they hold equally many layers."""
    overlap_exchange: Tensor
    """Gradients are exchanged behind the backward pass that makes them."""
    overlap_gather: Tensor
    """Updated parameters are gathered behind the forward pass that needs them."""
    overlap_p2p: Tensor
    bucket_bytes: Tensor
    """Gradients that data-parallel replicas exchange in one operation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine(Columns):
    """The devices, their links, and how numbers are kept on them."""

    matmul_flops_per_s: Tensor
    memory_bandwidth: Tensor
    usable_bytes: Tensor
    devices_per_host: Tensor
    intra_bandwidth: Tensor
    intra_latency: Tensor
    inter_bandwidth: Tensor
    inter_latency: Tensor
    ports: Tensor
    stall_probability_per_host: Tensor
    stall_s: Tensor
    asynchronous: Tensor
    element_bytes: Tensor
    """Of an activation, and of a weight as it is used."""
    gradient_bytes: Tensor
    optimizer_bytes: Tensor
    """Kept per parameter: the weight, its gradient (an accumulated one included), the optimizer's moments (and its fp32 original)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """n configurations, each of a model on a machine."""

    shape: Shape
    layout: Layout
    machine: Machine

    def __len__(self) -> int:
        return len(self.layout.dp)

    @property
    def tokens(self) -> Tensor:
        """Of one micro-batch, shape (n,)."""
        return self.layout.micro_batch * self.shape.seq_len

    @property
    def devices(self) -> Tensor:
        """Ranks, shape (n,)."""
        return self.layout.dp * self.layout.tp * self.layout.pp

    @property
    def hosts(self) -> Tensor:
        """Hosts that the ranks fill, shape (n,)."""
        return (self.devices / self.machine.devices_per_host).ceil()

    def take(self, rows: Tensor | slice) -> "Workload":
        """Some of the configurations."""
        return Workload(shape=self.shape.take(rows), layout=self.layout.take(rows), machine=self.machine.take(rows))


def workload_of(problem: Problem, candidates: Candidates) -> Workload:
    """All candidates of a job; raises InputError for a precision that its device does not know."""
    n = len(candidates)
    columns = {name: candidates.column(name) for name in (*_LAYOUT, *_CHOICES)}
    return Workload(
        shape=Shape(**_broadcast(shape_facts(problem.model), n)),
        layout=layout_of(columns, balanced=candidates.space.balanced_stages),
        machine=machine_of(hardware_of(problem.cluster), problem.training.precision, n, moments=len(problem.training.moments)),
    )


def layout_of(columns: Mapping[str, NDArray[Any]], *, balanced: bool) -> Layout:
    """The configurations' columns with what follows from the schedule; without bucket columns, everything goes in one operation."""
    numbers = {name: np.asarray(columns[name], dtype=np.float64) for name in _LAYOUT}
    pp, chunks, count = numbers["pp"], numbers["model_chunks"], numbers["num_microbatches"]
    schedule = np.asarray(columns.get("schedule", "1f1b"))
    zero_bubble = np.isin(schedule, ("interleaved-zb", "zb-v", "search"))
    chunks_in_flight = np.minimum(count, pp) * (1 + np.where(chunks > 1, (pp - 1) / (pp * chunks), 0))
    most_in_flight = np.where(np.isin(schedule, ("zb-v", "search")), pp, count)
    overlap_zero = np.asarray(columns.get("overlap_zero_comm", False), dtype=np.float64)
    facts = {
        **numbers,
        "recompute": _codes(columns["recompute"]),
        "bubble": (pp - 1) / chunks / np.where(zero_bubble, 3, 1),
        "in_flight": np.where(schedule == "gpipe", count, np.minimum(chunks_in_flight, most_in_flight)),
        "overlap_exchange": np.where((numbers["zero_stage"] == 0) & (pp == 1), 1.0, overlap_zero),
        "overlap_gather": np.asarray(columns.get("overlap_zero_allgather", False), dtype=np.float64),
        "overlap_p2p": np.asarray(columns.get("overlap_p2p", False), dtype=np.float64),
        "ep": np.asarray(columns.get("ep", 1), dtype=np.float64),
        "balanced": np.asarray((np.asarray(columns.get("stage_layout", "even")) != "even") | balanced, dtype=np.float64),
        "bucket_bytes": _bucket_mb(columns, numbers["zero_stage"]) * MIB,
    }
    return Layout(**{name: _tensor(np.broadcast_to(values, pp.shape)) for name, values in facts.items()})


def _bucket_mb(columns: Mapping[str, NDArray[Any]], zero_stage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the two bucket sizes the one that a space varies: at ZeRO 1 some frameworks have the one, some the other."""
    if "dp_bucket_mb" not in columns:
        return np.full(zero_stage.shape, np.inf)
    plain, sharded = (np.asarray(columns[name], dtype=np.float64) for name in ("dp_bucket_mb", "zero_bucket_mb"))
    return np.where((zero_stage == 0) | ((zero_stage == 1) & (plain != AT_REST_MB)), plain, sharded)


def shape_facts(model: Model) -> dict[str, float]:
    """The columns of `Shape` for one model."""
    active = model.experts_per_token
    matmul = model.attention_parameter_count + active * model.expert_parameter_count + model.router_parameter_count
    attended = (model.seq_len + 1) / 2 if model.causal else model.seq_len
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "kv_width": model.kv_width,
        "ffn": active * model.ffn,
        "ffn_tensors": 4 if model.gated else 2,
        "vocab": model.vocab,
        "seq_len": model.seq_len,
        "layer_parameters": model.layer_parameter_count,
        "expert_parameters": model.experts * model.expert_parameter_count if model.experts > 1 else 0,
        "layer_matmul_parameters": matmul,
        "routed": active if model.experts > 1 else 0,
        "attention_flops": 4 * model.hidden * attended,
        "embedding_parameters": model.embedding_parameter_count,
        "head_parameters": model.vocab * model.hidden,
        "tied": model.tied,
    }


def machine_of(hardware: Hardware, precision: str, n: int, *, moments: int = 2) -> Machine:
    """The same devices for n rows; raises InputError for an unknown precision."""
    return Machine(**_broadcast(machine_facts(hardware, precision, moments=moments), n))


def machine_facts(hardware: Hardware, precision: str, *, moments: int = 2) -> dict[str, float]:
    """The columns of `Machine` for one device at one precision; raises InputError for an unknown precision.

    Args:
        moments: That the optimizer keeps of each weight, in fp32.
    """
    full = precision in ("fp32", "tf32")
    return {
        "matmul_flops_per_s": hardware.matmul_peak(precision),
        "memory_bandwidth": hardware.memory_bandwidth_bytes_per_s,
        "usable_bytes": hardware.usable_bytes,
        "devices_per_host": hardware.devices_per_host,
        "intra_bandwidth": hardware.intra_host.bandwidth_bytes_per_s,
        "intra_latency": hardware.intra_host.latency_s,
        "inter_bandwidth": hardware.inter_host.bandwidth_bytes_per_s,
        "inter_latency": hardware.inter_host.latency_s,
        "ports": hardware.ports,
        "stall_probability_per_host": hardware.stall_probability_per_host,
        "stall_s": hardware.stall_s,
        "asynchronous": hardware.asynchronous,
        "element_bytes": 4 if full else 2,
        "gradient_bytes": 4 if full else 6,
        "optimizer_bytes": 4 * moments + (0 if full else 4),
    }


def _codes(recompute: NDArray[Any]) -> NDArray[np.float64]:
    return np.select([np.asarray(recompute) == name for name in RECOMPUTE], range(len(RECOMPUTE))).astype(np.float64)


def _broadcast(facts: Mapping[str, float], n: int) -> dict[str, Tensor]:
    return {name: torch.tensor(float(value), dtype=torch.float64).expand(n) for name, value in facts.items()}


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
