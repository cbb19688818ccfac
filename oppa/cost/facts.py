"""Convert the candidates of a job into a workload."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.beliefs import framework_of
from oppa.cost.framework import FrameworkPrior
from oppa.cost.hardware import Hardware, hardware_of
from oppa.cost.memory_limits import memory_limits
from oppa.cost.model_facts import FULL, model_facts
from oppa.cost.workload import (
    CP_MODES,
    DISPATCHERS,
    MODULES,
    RECOMPUTE,
    SELECTIVE,
    ConfigurationFacts,
    DeviceFacts,
    FormatFacts,
    ModelFacts,
    Workload,
)
from oppa.pipeline.registry import folded
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.units import MIB

AT_REST_MB = 25
"""MiB of a bucket whose size the search space does not vary."""
PCIE_BYTES_PER_S = 25e9
"""Bandwidth between a device without a stated one and its host: what PCIe 4.0 x16 reaches."""
OPTIMIZER_STATE_BYTES = {
    "adamw": (True, 8.0),
    "adamw-bf16": (False, 4.0),
    "adamw-8bit": (False, 2.0),
    "muon": (True, 4.0),
    "sgd": (True, 4.0),
}
"""Optimizers: whether they keep an fp32 copy of 16-bit weights, and the bytes of their moments per weight.

AdamW keeps two fp32 moments; with states in bf16, and no copy, two of 2 bytes; bitsandbytes' 8-bit one two of 1 byte. Muon and SGD with
momentum keep one fp32 moment.
"""
MOMENT_SHARES = {"32-bit": 1.0, "16-bit": 0.5, "8-bit": 0.25, "none": 0.0}
"""Formats of moments that an optimizer usually keeps in fp32, with their bytes over those in fp32; Adafactor keeps next to none."""
TRAINED = {"all": 1.0, "lora": 0.004}
"""Share of the weights that train. Adapters of LoRA have rank * (inputs + outputs) weights per matrix (Hu et al. 2021).

At rank 16 they are 0.2% of a model of 7B on the four matrices of attention, and 0.6% on all. The share lies between them.
"""
FROZEN_BYTES = {"16-bit": 2.0, "8-bit": 1.0, "4-bit": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a frozen weight of a layer, with the scales of quantised ones.

bitsandbytes keeps a scale for each block of 64 4-bit weights, in 8 bits with an fp32 scale for 256 of them (`bnb_4bit_use_double_quant`).
It keeps one fp32 scale for each row of 8-bit weights, which counts as nothing. Embedding and output projection keep 16 bits.
"""
EIGHT_BIT = ("fp8", "mxfp8")
_LAYOUT = ("dp", "tp", "pp", "model_chunks", "zero_stage", "micro_batch", "num_microbatches")
_BUCKETS = ("dp_bucket_mb", "zero_bucket_mb")
_OVERLAPS = ("overlap_zero_comm", "overlap_zero_allgather", "overlap_p2p")
_CHOICES = ("schedule", "recompute", *_BUCKETS, *_OVERLAPS, "ep", "stage_layout")


def workload_of(problem: Problem, candidates: Candidates) -> Workload:
    """Return the workload of all candidates of a job; raises InputError if the job's precision is unknown."""
    n = len(candidates)
    framework = framework_of(problem)
    columns = {name: candidates.column(name) for name in (*_LAYOUT, *_CHOICES)}
    columns |= framework.columns(candidates)
    training, precision = problem.training, problem.training.precision
    frozen, trained = FROZEN_BYTES[training.weights] if training.trained != "all" else None, TRAINED[training.trained]
    formats = format_facts(framework, precision, moments=4.0 * len(training.moments), trained=trained, frozen_bytes=frozen)
    return Workload(
        shape=ModelFacts(**_broadcast(model_facts(problem), n)),
        layout=layout_of(columns, framework, balanced=candidates.space.balanced_stages),
        machine=_machines(_limited(problem), precision, columns.get("precision"), n),
        formats=FormatFacts(**_broadcast(formats, n)),
    )


def _limited(problem: Problem) -> Hardware:
    """Return the device of a job, with the memory that predictions may fill."""
    return dataclasses.replace(hardware_of(problem.cluster), usable_bytes=memory_limits(problem).predicted)


def layout_of(
    columns: Mapping[str, Any], framework: FrameworkPrior | None = None, *, balanced: bool | NDArray[np.bool_]
) -> ConfigurationFacts:
    """Return the layout columns of configurations, with what follows from the schedule.

    Without bucket columns, replicas exchange all gradients in one operation.

    Args:
        columns: Values or arrays of shape (n,) by name. Optional are `schedule`, the overlaps, `stage_layout`, the bucket sizes, and the
            degrees and options of today's training: `cp`, `cp_mode`, `ep`, `etp`, `dispatcher`, `overlap_ep`, `shard`,
            `sequence_parallel`, `recompute_layers`, `recompute_modules`, `gradients`, `moments`, `attention`, `loss`, `residuals`, `norms`,
            `expert_products`, `offload`, `offload_parameters`, `overlap_tp`, `compiled`, `cuda_graphs`, `hpz`,
            `quantized_weights`, `quantized_gradients` and `fp8_weights`.
        framework: Decides what an absent column means.
        balanced: Stages are cut so that the output projection gets its share of the time; a flag, or flags of shape (n,).
    """
    numbers = {name: np.asarray(columns[name], dtype=np.float64) for name in _LAYOUT}
    pp, chunks, count = numbers["pp"], numbers["model_chunks"], numbers["num_microbatches"]
    schedule = np.asarray(columns.get("schedule", "1f1b"))
    zero_bubble = np.isin(schedule, ("interleaved-zb", "zb-v", "search"))
    together = np.asarray(_ends_together(schedule, chunks), dtype=np.float64)
    in_flight, last_in_flight = _in_flight(schedule, pp, chunks, count, together)
    overlap_zero = _numbers(columns, "overlap_zero_comm", 0)
    cp, tp, shard = _numbers(columns, "cp", 1), numbers["tp"], _numbers(columns, "shard", 0)
    etp, recomputed = _numbers(columns, "etp", 0), _numbers(columns, "recompute_layers", 0)
    offload, buckets = np.asarray(columns.get("offload", "none")), _bucket_mb(columns, numbers["zero_stage"]) * MIB
    facts = {
        **numbers,
        **{name: _flags(columns, name) for name in ("compiled", "cuda_graphs", "fp8_weights", "overlap_ep", "overlap_tp")},
        "cp": cp,
        "cp_mode": _codes(columns.get("cp_mode", framework.usual("cp_mode") if framework else ""), CP_MODES),
        "ep": _numbers(columns, "ep", 1),
        "etp": np.where(etp > 0, etp, tp),
        "shards": np.where(shard > 0, np.minimum(shard, numbers["dp"]), numbers["dp"]) * cp,
        "hpz": np.where(numbers["zero_stage"] >= 3, _numbers(columns, "hpz", 1), 1),
        "quantized_weights": _flags(columns, "quantized_weights") * (numbers["zero_stage"] >= 3),
        "quantized_gradients": _flags(columns, "quantized_gradients") * (numbers["zero_stage"] >= 3),
        "recompute": _codes(columns["recompute"], RECOMPUTE),
        **_modules_again(columns),
        **_operations(columns),
        "recompute_layers": np.where(recomputed > 0, recomputed, np.inf),
        "sequence_parallel": _numbers(columns, "sequence_parallel", float(framework is None or framework.sequence_parallel)),
        "offload_activations": np.asarray(offload == "activations", dtype=np.float64),
        "offload_optimizer": np.asarray(np.isin(offload, ("optimizer", "parameters")), dtype=np.float64),
        "offload_parameters": np.maximum(offload == "parameters", _flags(columns, "offload_parameters")),
        "bubble": (pp - 1) / chunks / np.where(zero_bubble, 3, 1),
        "ends_together": together,
        "in_flight": in_flight,
        "last_in_flight": last_in_flight,
        "overlap_exchange": np.where((numbers["zero_stage"] == 0) & (pp == 1), 1.0, overlap_zero),
        "overlap_gather": _numbers(columns, "overlap_zero_allgather", 0),
        "overlap_p2p": _numbers(columns, "overlap_p2p", 0),
        "balanced": np.asarray((np.asarray(columns.get("stage_layout", "even")) != "even") | balanced, dtype=np.float64),
        "bucket_bytes": buckets,
        "last_bucket_bytes": np.where(np.isinf(buckets), AT_REST_MB * MIB, buckets),
    }
    return ConfigurationFacts(**{name: _tensor(np.broadcast_to(values, pp.shape)) for name, values in facts.items()})


def _in_flight(
    schedule: NDArray[Any], pp: NDArray[np.float64], chunks: NDArray[np.float64], count: NDArray[np.float64], together: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the micro-batches whose activations the first and the last stage hold, shape (n,) each.

    Args:
        count: Micro-batches of a step.
        together: 1 if the stages form a V, whose ends are on one rank.
    """
    by_chunks = np.minimum(count, pp) * (1 + np.where(chunks > 1, (pp - 1) / (pp * chunks), 0))
    first = np.minimum(by_chunks, np.where(np.isin(schedule, ("zb-v", "search")), pp, count))
    last = np.where(together > 0, first, np.minimum(1 + (1 - 1 / chunks) * (pp - 1), first))
    gpipe = schedule == "gpipe"
    return np.where(gpipe, count, first), np.where(gpipe, count, last)


def _ends_together(schedule: NDArray[Any], chunks: NDArray[np.float64]) -> Any:
    """Return whether the stages of each schedule form a V, shape (n,) or ()."""
    names, sizes = np.unique(schedule).tolist(), np.unique(chunks).tolist()
    return np.any([(schedule == name) & (chunks == size) & folded(name, size) for name in names for size in sizes], axis=0)


def _operations(columns: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the columns of number formats and of ways to compute, shape (n,) or () each."""
    return {
        "dispatcher": _codes(columns.get("dispatcher", ""), DISPATCHERS),
        "narrow_gradients": _is(columns, "gradients", "16-bit"),
        "wide_gradients": _is(columns, "gradients", "32-bit"),
        "moment_share": _moment_share(columns),
        "flash": 1 - _is(columns, "attention", "plain"),
        "loss_bytes": _loss_bytes(columns),
        "chunked_loss": _is(columns, "loss", "chunked"),
        "wide_residuals": _is(columns, "residuals", "32-bit"),
        "plain_norms": _is(columns, "norms", "plain") * (1 - _flags(columns, "compiled")),
        "expert_loop": _is(columns, "expert_products", "loop"),
    }


def _modules_again(columns: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the columns of MODULES, shape (n,) or () each; attention's core is computed again unless other modules are stated."""
    stated = np.asarray(columns.get("recompute_modules", "")).astype(str)
    distinct, codes = np.unique(stated, return_inverse=True)
    named = [set((words or "core_attn").split("+")) for words in distinct.tolist()]
    return {column: np.array([float(module in each) for each in named])[codes].reshape(stated.shape) for module, column in MODULES.items()}


def _moment_share(columns: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the bytes of the optimizer's moments over those in their usual format, shape (n,) or ()."""
    stated = np.asarray(columns.get("moments", ""))
    return np.select([stated == name for name in MOMENT_SHARES], [*MOMENT_SHARES.values()], 1.0)


def _loss_bytes(columns: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the bytes per number of torch's own cross-entropy, shape (n,) or (); 0 where the loss is fused or chunked."""
    loss = np.asarray(columns.get("loss", "fused"))
    return np.select([loss == "plain", loss == "plain-16-bit"], [4.0, 2.0], 0.0)


def _bucket_mb(columns: Mapping[str, Any], zero_stage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bucket size that applies, in MiB, shape (n,); infinity without bucket columns.

    At ZeRO 1 some frameworks have one of the two sizes, some the other: the one that the search space varies applies.
    """
    if "dp_bucket_mb" not in columns:
        return np.full(zero_stage.shape, np.inf)
    plain, sharded = (np.asarray(columns[name], dtype=np.float64) for name in ("dp_bucket_mb", "zero_bucket_mb"))
    return np.where((zero_stage == 0) | ((zero_stage == 1) & (plain != AT_REST_MB)), plain, sharded)


def machine_of(hardware: Hardware, precision: str, n: int) -> DeviceFacts:
    """Return the columns of the same device for n rows; raises InputError for an unknown precision."""
    return DeviceFacts(**_broadcast(machine_facts(hardware, precision), n))


def _machines(hardware: Hardware, precision: str, lower: NDArray[Any] | None, n: int) -> DeviceFacts:
    """Return the columns of a device for configurations some of which compute in a lower precision than the job's."""
    if lower is None:
        return machine_of(hardware, precision, n)
    names, codes = np.unique(lower, return_inverse=True)
    kinds = [machine_facts(hardware, str(name) or precision) for name in names]
    return DeviceFacts(**{key: _tensor(np.array([float(kind[key]) for kind in kinds])[codes]) for key in kinds[0]})


def machine_facts(hardware: Hardware, precision: str) -> dict[str, float]:
    """Return the values of `DeviceFacts` for one device at one precision; raises InputError for an unknown precision."""
    eight_bit = precision in EIGHT_BIT
    peak, pair, host = hardware.matmul_peak(precision), hardware.pair, hardware.host_link
    return {
        "matmul_flops_per_s": peak,
        "attention_flops_per_s": hardware.matmul_peak("bf16") if eight_bit else peak,
        "eight_bit": eight_bit,
        "memory_bandwidth": hardware.memory_bandwidth_bytes_per_s,
        "usable_bytes": hardware.usable_bytes,
        "devices_per_host": max(hardware.devices_per_host, hardware.link_devices),
        "several_hosts": hardware.link_devices > hardware.devices_per_host,
        "intra_bandwidth": hardware.intra_host.bandwidth_bytes_per_s,
        "intra_latency": hardware.intra_host.latency_s,
        "pair_devices": pair.devices if pair else 1,
        "pair_latency": pair.latency_s if pair else hardware.intra_host.latency_s,
        "pair_bandwidth": pair.bandwidth_bytes_per_s if pair else hardware.intra_host.bandwidth_bytes_per_s,
        "inter_bandwidth": hardware.inter_host.bandwidth_bytes_per_s,
        "inter_latency": hardware.inter_host.latency_s,
        "ports": hardware.ports * max(1.0, hardware.link_devices / hardware.devices_per_host),
        "host_bandwidth": host.bandwidth_bytes_per_s if host else PCIE_BYTES_PER_S,
        "stalls": hardware.stalls,
        "asynchronous": hardware.asynchronous,
    }


def format_facts(
    framework: FrameworkPrior,
    precision: str,
    *,
    optimizer: str = "adamw",
    moments: float | None = None,
    trained: float = 1.0,
    frozen_bytes: float | None = None,
) -> dict[str, float]:
    """Return the values of `FormatFacts` for one framework, precision and optimizer.

    Args:
        moments: Bytes of the optimizer's moments per weight; None: those of `optimizer`.
        trained: Share of the weights that train; the others are frozen, as under LoRA.
        frozen_bytes: Bytes of a frozen weight; None: those of a weight in the format of the passes.
    """
    full = precision in FULL
    copies, usual = OPTIMIZER_STATE_BYTES[optimizer]
    lean = not full and not copies  # the 16-bit weights in use are the only ones, and gradients have their format
    whole = frozen_bytes or (4.0 if full else 2.0 if lean or trained < 1 else framework.weight_bytes)
    gradient = 4.0 if full else 2.0 if lean else framework.gradient_bytes
    master = 0.0 if full or lean else framework.master_bytes
    moment_bytes = usual if moments is None else moments
    alone = framework.sharded_weight_bytes if not lean and trained == 1 else whole
    return {
        "element_bytes": 4 if full else 2,
        "gate_tensors": 3 if framework.fused_gate else 4,
        "weight_bytes": whole,
        "gathered_weight_bytes": 4.0 if full else frozen_bytes or framework.gathered_weight_bytes,
        "sharded_weight_bytes": whole if full or frozen_bytes else alone,
        "gradient_bytes": gradient * trained,
        "optimizer_bytes": (master + moment_bytes) * trained,
        "moment_bytes": (moment_bytes if copies else 0.0) * trained,
        "update_bytes": framework.update_copies * (whole if lean else 4.0) * trained,
        "reduced_bytes": 4.0 if full else framework.reduced_bytes,
        "overlaps_tp_backward": framework.overlaps_tp_backward,
        "separate_experts": framework.separate_experts,
        "gathers_eight_bit": framework.gathers_eight_bit,
        "selective": SELECTIVE.index(framework.selective),
        "eight_bit_copy_bytes": framework.eight_bit_copy_bytes,
        "eight_bit_saving": framework.eight_bit_saving,
        "moved_bytes": framework.moved_per_micro_batch * trained,
        "trained": trained,
        "end_bytes": 2.0 - frozen_bytes if frozen_bytes else 0.0,
        "gathered_layers": framework.gathered_layers - (framework.gradient_layers if trained < 1 else 0.0),
        "gathered_parameters": framework.gathered_parameters,
        "gathers_ends": framework.gathers_ends,
        "gathers_each": framework.gathers_each_micro_batch,
        "prefetches": framework.prefetches,
        "reduces_each": framework.reduces_each_micro_batch,
        "pipelines_reduce_once": framework.pipelines_reduce_once,
        "gradient_buffer": framework.keeps_gradient_buffer,
        "frozen_unit_inputs": framework.frozen_unit_inputs if trained < 1 else 0.0,
        "gradients_sharded_from": framework.gradients_sharded_from,
        "gradients_scattered_from": framework.gradients_scattered_from,
        "stall_probability_per_host": framework.stall_probability_per_host,
        "stall_s": framework.stall_s,
    }


def _numbers(columns: Mapping[str, Any], name: str, default: float) -> NDArray[np.float64]:
    return np.asarray(columns.get(name, default), dtype=np.float64)


def _flags(columns: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    """Return 1 where a column is true, shape (n,) or (): its values are flags, or their words."""
    return np.isin(np.asarray(columns.get(name, False)).astype(str), ("true", "True", "1", "1.0")).astype(np.float64)


def _is(columns: Mapping[str, Any], name: str, word: str) -> NDArray[np.float64]:
    """Return 1 where a column has this word, shape (n,) or (); 0 without the column."""
    return np.asarray(np.asarray(columns.get(name, "")) == word, dtype=np.float64)


def _codes(column: Any, names: tuple[str, ...]) -> NDArray[np.float64]:
    return np.select([np.asarray(column) == name for name in names], range(len(names))).astype(np.float64)


def _broadcast(facts: Mapping[str, float], n: int) -> dict[str, Tensor]:
    return {name: torch.tensor(float(value), dtype=torch.float64).expand(n) for name, value in facts.items()}


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
