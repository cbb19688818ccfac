"""Rank candidates by an analytic step time, as AMP does (Li et al. 2022, section 4).

    step = (num_microbatches - 1) * stage + pp * stage + 2 (pp - 1) * transfer + exchange

AMP's sum has the slowest stage for every micro-batch but the first, all stages and the transfers between them once, and the exchange of
gradients. With equal stages, fill and drain take (pp - 1) * stage. An interleaved pipeline divides this by its model chunks (Narayanan et
al. 2021). Communication costs alpha + beta * bytes on the slowest link that a group spans.

It differs from AMP in four respects. Stages are equal, while AMP cuts them by dynamic programming. Computation follows from the
device's peak, while AMP times layers. Tensor, data, then pipeline parallel ranks are neighbours, while AMP also searches placements.
Context-parallel ranks share a sequence, and their exchange of keys and values is hidden behind attention (Liu et al. 2023, section 3).
Overlap, the optimizer, launch latencies and the efficiency of small kernels are left out. A planner learns nothing: it runs its first
choice.

Notation (n candidates): all arrays (n,)
"""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from oppa.cost.hardware import Hardware, hardware_of
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, first_free
from oppa.tuning.designers.analytic_memory import Column, context_ranks, element_bytes, memory_bytes

UTILISATION = 0.5
"""Share of the peak that well-tuned training of large models reaches in matrix products (Narayanan et al. 2021, table 1: 44 to 52%)."""
ALL_REDUCES = 4
"""All-reduces per layer and micro-batch under tensor parallelism: two forward, two backward (Shoeybi et al. 2019, section 3)."""
ZERO_3_TRAFFIC = 1.5
"""Traffic between replicas under ZeRO 3, relative to that without it (Rajbhandari et al. 2020, section 7.2)."""


class Planner:
    """Implements the designer `planner`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        memory = memory_bytes(problem, candidates)
        too_much = memory > problem.cluster.usable_bytes
        # Candidates that cannot fit come last; among equally fast ones, less memory comes first.
        self._order = np.lexsort((memory, step_time_s(problem, candidates), too_much)).tolist()

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the next candidate of the ranking; None if none is left."""
        return first_free(self._order, taken)

    def predict(self, candidate: int) -> None:
        """Return None, as the error of the estimate is unknown."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Ignore the observations, as a planner learns nothing."""


def step_time_s(problem: Problem, candidates: Candidates) -> Column:
    """Return the seconds per optimizer step of every candidate."""
    hardware, model = hardware_of(problem.cluster), problem.model
    tp, pp = candidates.column("tp"), candidates.column("pp")
    replicas = candidates.column("dp") * context_ranks(problem, candidates)
    count, stage = candidates.column("num_microbatches"), _stage_s(problem, candidates, hardware)
    latency, bandwidth = _link(hardware, replicas * tp * 2)
    transfers = 2 * (pp - 1) * (latency + _activation_bytes(problem, candidates) / bandwidth)
    gradients = (
        model.parameter_count / (tp * pp) * element_bytes(problem) * np.where(candidates.column("zero_stage") >= 3, ZERO_3_TRAFFIC, 1)
    )
    exchange = _all_reduce_s(hardware, replicas, gradients, spanned=replicas * tp)
    return np.asarray(count * stage + (pp - 1) / candidates.column("model_chunks") * stage + transfers + exchange)


def _stage_s(problem: Problem, candidates: Candidates, hardware: Hardware) -> Column:
    """Return the seconds of one micro-batch's forward and backward pass through one stage, tensor-parallel all-reduces included."""
    model, micro_batch = problem.model, candidates.column("micro_batch")
    tp, pp = candidates.column("tp"), candidates.column("pp")
    passes = np.where(candidates.column("recompute") == "full", 4, 3)
    operations = passes * model.forward_flops_per_sequence * micro_batch / (tp * pp * context_ranks(problem, candidates))
    reduces = ALL_REDUCES * model.layers / pp * _all_reduce_s(hardware, tp, _activation_bytes(problem, candidates), spanned=tp)
    return np.asarray(operations / (UTILISATION * hardware.matmul_peak(problem.training.precision)) + reduces)


def _activation_bytes(problem: Problem, candidates: Candidates) -> Column:
    """Return the bytes of a micro-batch between two layers, on each context-parallel rank."""
    tokens = candidates.column("micro_batch") * problem.model.seq_len / context_ranks(problem, candidates)
    return np.asarray(tokens * problem.model.hidden * element_bytes(problem))


def _all_reduce_s(hardware: Hardware, members: NDArray[np.int64], size: Column, *, spanned: NDArray[np.int64]) -> Column:
    """Return the seconds of a ring all-reduce among D = `members` ranks: 2 (D - 1) alpha + 2 (D - 1) / D * bytes * beta.

    Args:
        size: Bytes to reduce.
        spanned: Number of neighbouring devices that the ranks lie within.
    """
    latency, bandwidth = _link(hardware, spanned)
    return np.asarray(2 * (members - 1) * latency + 2 * (members - 1) / members * size / bandwidth)


def _link(hardware: Hardware, spanned: NDArray[np.int64]) -> tuple[Column, Column]:
    """Return latency and bandwidth of the slowest link among `spanned` neighbouring devices, in seconds and bytes per second."""
    inside = spanned <= hardware.devices_per_host
    latency = np.where(inside, hardware.intra_host.latency_s, hardware.inter_host.latency_s)
    return latency, np.where(inside, hardware.intra_host.bandwidth_bytes_per_s, hardware.inter_host.bandwidth_bytes_per_s)
