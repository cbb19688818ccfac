"""Predict the peak bytes of one rank, item by item (Korthikanti et al. 2022, section 4, for activations, tensor by tensor).

Notation:
    e bytes of an element, T tokens of a micro-batch, h hidden, k key width, f feed-forward width, a heads, s sequence length
    t = tp; u = t if tensor-parallel ranks also shard the tensors between the products (sequence parallelism), else 1
"""

import dataclasses

from oppa.problem.configuration import Configuration
from oppa.simulator.data_parallel import DataParallel
from oppa.simulator.degrees import expert_shards, replicas, shards
from oppa.simulator.operator_costs import EXPERT_IMBALANCE, OperatorCosts
from oppa.units import MIB

CONTEXT_BYTES = 550 * MIB
"""CUDA's context and the libraries' workspaces, outside the allocator. Many have measured 300 to 800 MiB."""

COMMUNICATOR_BYTES = 130 * MIB
"""NCCL's buffers of one group: 4 MiB for each of up to 16 channels, twice, and more for point-to-point."""

FRAGMENTATION = 1.06
"""Memory that the caching allocator reserves at the peak, relative to what is allocated. Assumed."""

ADAM_STATE_BYTES = 8
MASTER_BYTES = 4


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Activations:
    """Predicts the bytes that a micro-batch keeps on a rank between its forward and its backward pass."""

    work: OperatorCosts

    def layer_bytes(self, recompute: str) -> float:
        """Return the bytes that a layer keeps until its backward pass."""
        stream = self.work.stream_bytes / self._shared
        if recompute == "full":
            return stream
        if recompute == "selective":
            dropped = self._scores_bytes if not self.work.framework.fused_attention else self._attention_bytes
            return self._all_bytes - dropped
        return self._all_bytes

    def working_bytes(self, recompute: str) -> float:
        """Return the extra bytes during the backward pass of one layer.

        They are the gradients of its widest tensors, the tensors that are recomputed, and those of other context-parallel ranks.
        """
        work = self.work
        again = self._all_bytes - self.layer_bytes(recompute)
        again += work.exchanged_bytes if work.cp > 1 else 0.0
        return again + 2 * work.stream_bytes + 2 * work.tokens * work.model.ffn / work.tp * work.kernels.bytes_per_element

    @property
    def head_bytes(self) -> float:
        """Return the extra bytes while the loss is computed: logits, their fp32 copy, probabilities, and their gradient."""
        model, e = self.work.model, self.work.kernels.bytes_per_element
        rows = self.work.sequences if model.patch else self.work.tokens
        return rows * model.vocab / self.work.tp * (2 * e + 8) + 2 * self.work.stream_bytes

    @property
    def _shared(self) -> int:
        return self.work.tp if self.work.framework.sequence_parallel else 1

    @property
    def _scores_bytes(self) -> float:
        """Return the bytes of the scores after the softmax, the dropout mask, and the output of dropout: 5 a s T / t at e = 2.

        Fused attention keeps one fp32 number per row instead.
        """
        rows = self.work.tokens * self.work.model.heads / self.work.tp
        if self.work.framework.fused_attention:
            return 4.0 * rows
        return rows * self.work.model.seq_len * (2 * self.work.kernels.bytes_per_element + 1)

    @property
    def _attention_bytes(self) -> float:
        """Return the bytes of queries, keys and values, their rotated copies, the output, and the scores."""
        model, work = self.work.model, self.work
        rotated = 0 if model.learned_positions or work.framework.fused_norms else model.hidden + model.kv_width
        widths = 2 * model.hidden + 2 * model.kv_width + rotated
        return widths * work.tokens * work.kernels.bytes_per_element / work.tp + self._scores_bytes

    @property
    def _feed_forward_bytes(self) -> float:
        """Return the bytes of the outputs of the first products, the activation and the gate.

        With experts, it counts the tokens routed to the rank, and two more tensors of width h for each.
        """
        model, work = self.work.model, self.work
        widths = (4 if model.gated else 2) * model.ffn
        per_token = widths * work.kernels.bytes_per_element / work.tp
        if model.experts == 1:
            return per_token * work.tokens
        routed = EXPERT_IMBALANCE * model.experts_per_token * work.tokens
        return routed * (per_token + 2 * model.hidden * work.kernels.bytes_per_element)

    @property
    def _all_bytes(self) -> float:
        """Return the bytes that a layer keeps without recomputation.

        It adds inputs and outputs of two norms, attention, feed-forward network, dropout masks, and fp32 copies of eager norms.
        """
        work = self.work
        norms = 2 * work.stream_bytes / self._shared + 2 * work.stream_bytes / (self._shared if work.framework.gathers_again else 1)
        copies = 0 if work.framework.fused_norms or work.kernels.bytes_per_element == 4 else 2 * work.stream_bytes / self._shared
        dropout = 2 * work.tokens * work.model.hidden / self._shared if work.model.biases else 0
        return norms + copies + dropout + self._attention_bytes + self._feed_forward_bytes


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class States:
    """Predicts the bytes of a rank that do not depend on micro-batches in flight: weights, gradients, optimizer state."""

    data_parallel: DataParallel
    dense: float
    """Number of this rank's weights that all data-parallel ranks hold."""
    experts: float

    @property
    def bytes(self) -> float:
        """Return the bytes during forward and backward passes."""
        return self._weights + self._gradients + self._optimizer + self._buckets

    @property
    def step_bytes(self) -> float:
        """Return the extra bytes during the optimizer step: gradients in fp32, unless they are in fp32 already."""
        return 0.0 if self.data_parallel.gradient_bytes == 4 else 4 * self._mine

    @property
    def _pc(self) -> Configuration:
        return self.data_parallel.configuration

    @property
    def _all(self) -> float:
        return self.dense + self.experts

    @property
    def _mine(self) -> float:
        """Return the number of weights that this rank updates."""
        return self._share(1)

    def _share(self, stage: int) -> float:
        """Return the number of weights that this rank holds of a state that ZeRO shards from `stage` on."""
        pc = self._pc
        return self.dense / shards(pc) + self.experts / expert_shards(pc) if pc.zero_stage >= stage else self._all

    @property
    def _weights(self) -> float:
        return self._share(3) * self.data_parallel.kernels.bytes_per_element

    @property
    def _gradients(self) -> float:
        extra = self.data_parallel.kernels.bytes_per_element if self.data_parallel.framework.both_gradients else 0
        return self._share(2) * (self.data_parallel.gradient_bytes + extra)

    @property
    def _optimizer(self) -> float:
        master = MASTER_BYTES if self.data_parallel.kernels.bytes_per_element < 4 else 0
        return self._mine * (master + ADAM_STATE_BYTES)

    @property
    def _buckets(self) -> float:
        """Return the bytes of gradient copies for communication.

        DistributedDataParallel copies all gradients. ZeRO needs twice a bucket, or twice two if communication overlaps.
        """
        pc, each = self._pc, self.data_parallel.gradient_bytes
        if replicas(pc) == 1:
            return 0.0
        if pc.zero_stage == 0:
            return self._all * each if self.data_parallel.framework.ddp_copy and pc.pp == 1 else 0.0
        return min(self._all * each, MIB * pc.zero_bucket_mb * (2 if pc.overlap_zero_comm else 1)) * 2
