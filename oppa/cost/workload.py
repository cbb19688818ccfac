"""Define the input of the cost model: columns of numbers, one row per configuration.

Configurations of a job and rows of a user's table have the same form here, so the same code predicts both.
All columns are float64 tensors of shape (n,). Sizes are in bytes, times in seconds.
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
"""MiB of a bucket whose size the search space does not vary."""
_LAYOUT = ("dp", "tp", "pp", "model_chunks", "zero_stage", "micro_batch", "num_microbatches")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Holds the rows of a table whose columns are the fields."""

    def take(self, rows: Tensor | slice) -> Self:
        """Return some of the rows."""
        return dataclasses.replace(self, **{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFacts(Columns):
    """Describes the model: its widths, and its counts per layer and per token."""

    layers: Tensor
    hidden: Tensor
    kv_width: Tensor
    ffn: Tensor
    """Total width of the feed-forward networks that a token passes through in a layer."""
    ffn_tensors: Tensor
    """Number of tensors of width `ffn` that the backward pass needs: 4 if gated, else 2."""
    vocab: Tensor
    seq_len: Tensor
    layer_parameters: Tensor
    expert_parameters: Tensor
    """Parameters of a layer's experts, which expert parallelism shards; 0 without experts."""
    layer_matmul_parameters: Tensor
    """Weights of a layer that multiply each token."""
    routed: Tensor
    """Experts that each token is routed to; 0 without experts."""
    attention_flops: Tensor
    """Forward operations per token of a layer's attention: the scores, and their product with the values."""
    embedding_parameters: Tensor
    head_parameters: Tensor
    """Parameters of the output projection, counted also if it is tied to the embedding."""
    tied: Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigurationFacts(Columns):
    """Describes the configuration, and what follows from its schedule."""

    dp: Tensor
    tp: Tensor
    pp: Tensor
    ep: Tensor
    model_chunks: Tensor
    zero_stage: Tensor
    micro_batch: Tensor
    num_microbatches: Tensor
    recompute: Tensor
    """0 for none, 1 for selective, 2 for full."""
    bubble: Tensor
    """Idle time of a stage per step, in micro-batches: (pp - 1) / model_chunks, or a third of it in zero-bubble schedules."""
    in_flight: Tensor
    """Number of micro-batches whose activations the first stage holds at once."""
    balanced: Tensor
    """1 if stages are cut so that the output projection gets its share of the time; 0 if they hold equally many layers."""
    overlap_exchange: Tensor
    """1 if the exchange of gradients overlaps the backward pass that computes them."""
    overlap_gather: Tensor
    """1 if the gathering of updated parameters overlaps the forward pass that uses them."""
    overlap_p2p: Tensor
    bucket_bytes: Tensor
    """Bytes of gradients that replicas exchange in one operation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceFacts(Columns):
    """Describes the devices, their links, and the number formats in use."""

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
    """Bytes of an activation, and of a weight in the format that passes use."""
    gradient_bytes: Tensor
    """Bytes per parameter of the gradient, an accumulated one included."""
    optimizer_bytes: Tensor
    """Bytes per parameter of the optimizer's moments and, in 16-bit precisions, of the fp32 weight."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Holds n configurations, each with its model and its machine."""

    shape: ModelFacts
    layout: ConfigurationFacts
    machine: DeviceFacts

    def __len__(self) -> int:
        return len(self.layout.dp)

    @property
    def tokens(self) -> Tensor:
        """Return the tokens of one micro-batch, shape (n,)."""
        return self.layout.micro_batch * self.shape.seq_len

    @property
    def devices(self) -> Tensor:
        """Return the number of ranks, shape (n,)."""
        return self.layout.dp * self.layout.tp * self.layout.pp

    @property
    def hosts(self) -> Tensor:
        """Return the number of hosts that the ranks occupy, shape (n,)."""
        return (self.devices / self.machine.devices_per_host).ceil()

    def take(self, rows: Tensor | slice) -> "Workload":
        """Return some of the configurations."""
        return Workload(shape=self.shape.take(rows), layout=self.layout.take(rows), machine=self.machine.take(rows))


def workload_of(problem: Problem, candidates: Candidates) -> Workload:
    """Return the workload of all candidates of a job; raises InputError if the job's precision is unknown."""
    n = len(candidates)
    columns = {name: candidates.column(name) for name in (*_LAYOUT, *_CHOICES)}
    return Workload(
        shape=ModelFacts(**_broadcast(shape_facts(problem.model), n)),
        layout=layout_of(columns, balanced=candidates.space.balanced_stages),
        machine=machine_of(hardware_of(problem.cluster), problem.training.precision, n, moments=len(problem.training.moments)),
    )


def layout_of(columns: Mapping[str, NDArray[Any]], *, balanced: bool) -> ConfigurationFacts:
    """Return the layout columns of configurations, with what follows from the schedule.

    Without bucket columns, replicas exchange all gradients in one operation.
    """
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
    return ConfigurationFacts(**{name: _tensor(np.broadcast_to(values, pp.shape)) for name, values in facts.items()})


def _bucket_mb(columns: Mapping[str, NDArray[Any]], zero_stage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bucket size that applies, in MiB, shape (n,); infinity without bucket columns.

    At ZeRO 1 some frameworks have one of the two sizes, some the other: the one that the search space varies applies.
    """
    if "dp_bucket_mb" not in columns:
        return np.full(zero_stage.shape, np.inf)
    plain, sharded = (np.asarray(columns[name], dtype=np.float64) for name in ("dp_bucket_mb", "zero_bucket_mb"))
    return np.where((zero_stage == 0) | ((zero_stage == 1) & (plain != AT_REST_MB)), plain, sharded)


def shape_facts(model: Model) -> dict[str, float]:
    """Return the values of `ModelFacts` for one model."""
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


def machine_of(hardware: Hardware, precision: str, n: int, *, moments: int = 2) -> DeviceFacts:
    """Return the columns of the same device for n rows; raises InputError for an unknown precision."""
    return DeviceFacts(**_broadcast(machine_facts(hardware, precision, moments=moments), n))


def machine_facts(hardware: Hardware, precision: str, *, moments: int = 2) -> dict[str, float]:
    """Return the values of `DeviceFacts` for one device at one precision; raises InputError for an unknown precision.

    Args:
        moments: Number of fp32 moments that the optimizer keeps of each weight.
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
