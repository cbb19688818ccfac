"""Predict the work of one tensor-parallel rank for one micro-batch: layer, embedding and head, operator by operator.

Notation:
    T tokens of the micro-batch, h hidden, q = h query width, k key width, f feed-forward width, V words, t = tp
    a pass takes time on a device and on its host; the larger counts, because kernels are launched ahead of their execution

Columns or rows of the products of a layer are split over t. Query-key-value: (T, (q + 2 k) / t, h). Output: (T, h, q / t). Up, twice with a
gate: (T, f / t, h). Down: (T, h, f / t). The backward pass has two of each: for the input (T, k, n) and for the weights (k, n, T).
"""

import dataclasses
import functools

from oppa.problem.model import Model
from oppa.simulator.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s
from oppa.simulator.context_parallel import ContextExchange
from oppa.simulator.framework import Framework
from oppa.simulator.kernels import Kernels
from oppa.simulator.topology import Topology

EXPERT_IMBALANCE = 1.2
"""Tokens of the fullest expert relative to the mean. Assumed; a balancing loss keeps the ratio low."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Holds the seconds of work on a device and on its host."""

    device_s: float = 0.0
    host_s: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.device_s + other.device_s, self.host_s + other.host_s)

    def __mul__(self, times: float) -> "Cost":
        return Cost(self.device_s * times, self.host_s * times)

    @property
    def seconds(self) -> float:
        """Return the larger of the two."""
        return max(self.device_s, self.host_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
    """Holds the costs of the forward pass, the backward pass with respect to inputs, and the gradients of weights."""

    forward: Cost = Cost()
    backward: Cost = Cost()
    weight: Cost = Cost()

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(self.forward + other.forward, self.backward + other.backward, self.weight + other.weight)

    def __mul__(self, times: float) -> "Passes":
        return Passes(self.forward * times, self.backward * times, self.weight * times)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OperatorCosts:
    """Predicts the passes of a micro-batch of `sequences` sequences on one rank."""

    model: Model
    kernels: Kernels
    topology: Topology
    framework: Framework
    tp: int
    ep: int
    sequences: int
    cp: int = 1
    contended: bool = False
    """The pipeline spans several hosts."""

    @property
    def tokens(self) -> int:
        """Return the tokens of the micro-batch on this rank, T."""
        return self.sequences * self.model.seq_len // self.cp

    @property
    def stream_bytes(self) -> int:
        """Return the bytes of the micro-batch between two layers."""
        return self.tokens * self.model.hidden * self.kernels.bytes_per_element

    @property
    def exchanged_bytes(self) -> int:
        """Return the bytes that a rank receives for the attention of a layer: keys and values, and without a ring queries and outputs."""
        widths = 2 * self.model.kv_width + (0 if self.framework.ring_attention else 2 * self.model.hidden)
        return widths * self.tokens * self.kernels.bytes_per_element // self.tp

    def layer(self, recompute: str) -> Passes:
        """Return the passes of one layer; recomputation is part of the backward pass."""
        passes = self._attention + self._feed_forward + self._between + self._host
        if recompute == "full":
            return passes + Passes(backward=passes.forward)
        if recompute == "selective":
            return passes + Passes(backward=self._core.forward if not self.framework.fused_attention else self._attention.forward)
        return passes

    @functools.cached_property
    def embedding(self) -> Passes:
        """Return the passes of the embedding: a look-up of tokens, or a projection of patches."""
        model = self.model
        if model.patch:
            return self._product(self.tokens, model.hidden, 3 * model.patch**2, input_gradient=False)
        rows = self.kernels.element_wise_s(2 * self.stream_bytes)
        together = Cost(self._sum_s(self.stream_bytes), self._collectives_s(1))
        return Passes(Cost(rows) + together, weight=Cost(2 * rows))

    @functools.cached_property
    def head(self) -> Passes:
        """Return the passes of the last norm, the output projection and the loss.

        The loss reads and writes log-probabilities in fp32 a few times.
        """
        model = self.model
        rows = self.sequences if model.patch else self.tokens
        words = -(-model.vocab // self.tp)
        logits = self._product(rows, words, model.hidden)
        loss_s = self.kernels.element_wise_s(rows * words * 4 * 2 * self._passes, 8)
        gather = Cost(self._gather_s(self.stream_bytes), self._collectives_s(1))
        host = Passes(Cost(host_s=20 * self._operation_s), Cost(host_s=20 * self._operation_s))
        return logits + Passes(Cost(loss_s) + gather, Cost(0.6 * loss_s) + gather) + host

    @functools.cached_property
    def _attention(self) -> Passes:
        model, tp = self.model, self.tp
        projections = self._product(self.tokens, (model.hidden + 2 * model.kv_width) // tp, model.hidden)
        output = self._product(self.tokens, model.hidden, model.hidden // tp)
        return projections + self._core + output + self._exchange

    @functools.cached_property
    def _core(self) -> Passes:
        """Return the passes of the scores, the softmax, and their product with the values."""
        model, kernels, heads = self.model, self.kernels, self.model.heads // self.tp
        if not self.framework.fused_attention:
            return self._unfused_core
        attended = model.seq_len * (model.seq_len + 1) // 2 if model.causal else model.seq_len**2
        flops = 4 * self.sequences * attended * model.head_dim * heads // self.cp
        bytes_ = 4 * self.tokens * model.head_dim * heads * kernels.bytes_per_element
        forward_s, backward_s = kernels.attention_s(flops, bytes_), kernels.attention_s(2.5 * flops, 2 * bytes_)
        exchange = self._context_exchange
        host_s = self._collectives_s(exchange.collectives, self.cp)
        return Passes(
            Cost(forward_s + exchange.exposed_s(forward_s, backward=False), host_s),
            Cost(backward_s + exchange.exposed_s(backward_s, backward=True), host_s),
        )

    @property
    def _context_exchange(self) -> ContextExchange:
        """Return what attention needs of the tokens on other ranks."""
        element = self.tokens * self.kernels.bytes_per_element / self.tp
        return ContextExchange(
            group=self.topology.group(self.cp, self.tp),
            kernels=self.kernels,
            ring=self.framework.ring_attention,
            kv_bytes=2 * self.model.kv_width * element,
            query_bytes=self.model.hidden * element,
        )

    @property
    def _unfused_core(self) -> Passes:
        """Return the passes of two batched products with the scores in memory between them.

        The scores are masked, normalised, and go through dropout.
        """
        model, kernels, batch = self.model, self.kernels, self.sequences * self.model.heads // self.tp
        scores = kernels.matmul_s(model.seq_len, model.seq_len, model.head_dim, batch)
        values = kernels.matmul_s(model.seq_len, model.head_dim, model.seq_len, batch)
        elements = batch * model.seq_len**2
        passes_s = kernels.element_wise_s((2 + 2 + 1) * elements * kernels.bytes_per_element, 2)
        return Passes(Cost(scores + values + passes_s), Cost(2 * (scores + values) + passes_s))

    @functools.cached_property
    def _feed_forward(self) -> Passes:
        return self._mixture if self.model.experts > 1 else self._network(self.tokens, self.tp) + self._exchange

    def _network(self, tokens: int, tp: int) -> Passes:
        """Return the passes of a feed-forward network on `tokens` tokens."""
        model, width = self.model, self.model.ffn // tp
        ups = 2 if model.gated else 1
        up, down = self._product(tokens, ups * width, model.hidden), self._product(tokens, model.hidden, width)
        written = tokens * width * self.kernels.bytes_per_element
        activation_s = self.kernels.element_wise_s((ups + 1) * written * self._passes, ups)
        return up + down + Passes(Cost(activation_s), Cost(1.5 * activation_s))

    @property
    def _mixture(self) -> Passes:
        """Return the passes of a mixture of experts.

        They include a router, sending tokens to the ranks of their experts and back, and the rank's experts one after the other.
        """
        model = self.model
        group = self.topology.group(self.ep, self.tp)
        sent_bytes = model.experts_per_token * self.stream_bytes / self.tp
        exchange = Cost(2 * all_to_all_s(group, sent_bytes), self._collectives_s(2, self.ep))
        mine = model.experts // self.ep
        tokens = max(1, round(EXPERT_IMBALANCE * self.tokens * model.experts_per_token * self.ep / model.experts))
        router = self._product(self.tokens, model.experts, model.hidden)
        sorting_s = self.kernels.element_wise_s(4 * model.experts_per_token * self.stream_bytes, 6)
        host = Cost(host_s=(20 + 6 * mine) * self._operation_s)
        around = exchange + Cost(sorting_s) + host
        return self._network(tokens, self.tp) * mine + router + self._exchange + Passes(around, around)

    @functools.cached_property
    def _between(self) -> Passes:
        """Return the passes of the element-wise operations: two norms, two residuals, rotation or dropout."""
        shared = self.tp if self.framework.sequence_parallel else 1
        norms = 2 * 2 * self.stream_bytes / shared
        residuals = 2 * 3 * self.stream_bytes / shared
        dropout = 2 * 2.5 * self.stream_bytes / shared if self.model.biases else 0.0
        rotated = 0 if self.model.learned_positions else 2 * self.tokens * (self.model.hidden + self.model.kv_width) // self.tp
        bytes_ = self._passes * (norms + rotated * self.kernels.bytes_per_element) + residuals + dropout
        seconds = self.kernels.element_wise_s(bytes_, 4 if self.framework.fused_norms else 16)
        return Passes(Cost(seconds), Cost(1.5 * seconds))

    @functools.cached_property
    def _host(self) -> Passes:
        forward, backward = (count * self._operation_s for count in self.framework.host_operations)
        return Passes(Cost(host_s=forward), Cost(host_s=0.7 * backward), Cost(host_s=0.3 * backward))

    @functools.cached_property
    def _exchange(self) -> Passes:
        """Return the tensor-parallel communication of the attention; the feed-forward network has the same."""
        gather, scatter = self._gather_s(self.stream_bytes), self._scatter_s(self.stream_bytes)
        if self.framework.sequence_parallel:
            pair = Cost(gather + scatter, self._collectives_s(2))
            again = Cost(gather, self._collectives_s(1)) if self.framework.gathers_again else Cost()
            return Passes(pair, pair, again)
        each = Cost(self._sum_s(self.stream_bytes), self._collectives_s(1))
        return Passes(each, each)

    def _product(self, rows: int, columns: int, depth: int, *, input_gradient: bool = True) -> Passes:
        matmul_s = self.kernels.matmul_s
        backward = Cost(matmul_s(rows, depth, columns)) if input_gradient else Cost()
        return Passes(Cost(matmul_s(rows, columns, depth)), backward, Cost(matmul_s(depth, columns, rows)))

    @property
    def _passes(self) -> float:
        """Return the memory traffic of an eager framework relative to that of a fused kernel.

        The eager one also reads and writes for casts to fp32, squares, means and products.
        """
        return 1.0 if self.framework.fused_norms else 2.5

    @property
    def _operation_s(self) -> float:
        return self.kernels.hardware.host.operation_s

    def _collectives_s(self, count: int, size: int | None = None) -> float:
        """Return the host's seconds for `count` collectives; 0 in a group of one.

        Args:
            size: Size of their group; None: tp.
        """
        each = self.kernels.hardware.host.collective_s + self.framework.collective_operations * self._operation_s
        return count * each if (self.tp if size is None else size) > 1 else 0.0

    def _gather_s(self, bytes_: float) -> float:
        return all_gather_s(self.topology.group(self.tp, 1), bytes_) + self._contention_s if self.framework.sequence_parallel else 0.0

    def _scatter_s(self, bytes_: float) -> float:
        return reduce_scatter_s(self.topology.group(self.tp, 1), bytes_) + self._contention_s

    @property
    def _contention_s(self) -> float:
        return (self.tp - 1) * self.framework.contended_step_s if self.contended else 0.0

    def _sum_s(self, bytes_: float) -> float:
        return all_reduce_s(self.topology.group(self.tp, 1), bytes_)
