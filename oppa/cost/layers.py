"""Predict the seconds of one layer's forward and backward pass on one micro-batch.

A rank computes the matrix products with weights, the attention and the element-wise operations, and communicates within its tensor-,
context- and expert-parallel groups.

Notation (n rows):
    tokens     tokens of one micro-batch on a rank
    passes     how often the operations of a forward pass run: forward, backward (twice as many), and once more if it is recomputed
"""

import dataclasses

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.collectives import CollectiveGroup, all_to_all_time, deduplicated_time, gather_time
from oppa.cost.recomputation import attention_again, elementwise_again, expert_parallel_again, matmul_again, tensor_parallel_again
from oppa.cost.stages import activation_elements, experts_per_layer, held_per_layer, moved_elements, replicated_elements
from oppa.cost.workload import ALL_GATHER, DEDUPLICATED, Workload

TENSOR_PARALLEL_OPERATIONS = 8
"""Operations per layer and micro-batch.

An all-reduce follows attention and feed-forward, forward and backward. Each is a reduce-scatter and an all-gather.
"""
EXPERT_PARALLEL_OPERATIONS = 4
"""Operations per layer and micro-batch: all-to-alls to the experts and back, forward and backward."""
MORE_OPERATIONS_WITH_EXPERTS = 0.5
"""Operations that a layer of experts has in addition to those of a dense layer, as a share: routing, permutation, one group per expert."""
MORE_OPERATIONS_PER_EXPERT = 0.03
"""Operations that each expert of a rank adds to a layer if experts are computed one by one, as a share of the layer's own.

Two matrices have six products, forward and backward, and two gradients, each launched within some 15 us. Next to 4.3 ms of a layer
(priors/step_time.toml) that is 0.03. Runs of mixtures under Megatron-LM on 8 H100 imply 0.02 to 0.04, and were seen before.
"""
MORE_OPERATIONS_IN_A_RING = 0.16
"""Operations that each step of a context-parallel ring adds to a layer, as a share of the layer's own.

Transformer Engine's `AttnFuncWithCPAndKVP2P` sends, receives, copies halves, attends and corrects its output, forward and backward. Runs of
Megatron-LM on 4 and 8 H100 launch for longer than they compute. They imply 0.7 ms for each step, next to 4.3 ms of a layer.
"""
MORE_OPERATIONS_IN_AN_EXCHANGE = 0.5
"""The same for other exchanges, which copy and reorder queries, keys, values and outputs: 2.5 ms in runs of the same source."""
FLASH_BACKWARD = 2.5
"""Operations of the backward pass of flash attention, against its forward pass: it computes the scores again (Dao et al. 2022, B.2)."""
QUANTISED_BYTES = 0.5
"""Bytes per activation and pass that 8-bit training moves to quantise: norms and activations write most 8-bit inputs themselves."""
INDEXED_GRADIENT_MOVES = 4
"""Passes over the gradient of all of a layer's experts that the backward pass of a loop over them makes for each expert.

The gradient of `weight[i]` has the shape of the whole stack (torch's `select_backward`). Zeros are written, read, and added to the sum,
which is read and written.
"""
MOVED_SCORE_BYTES = 40
"""Bytes moved per score for a softmax with dropout that is written to memory, forward and backward.

Scores, probabilities, mask and dropped probabilities are written and read once each; the backward pass moves twice as much.
"""
PLAIN_NORM_BYTES, PLAIN_NORM_FORWARD_BYTES = 136, 56
"""Bytes that two norms as separate operations move for each number of their input, less those of fused ones: in all, and forward alone.

`LlamaRMSNorm` of Transformers converts to fp32, squares, averages, multiplies, converts back, and multiplies by its weights: 36 bytes
forward and 56 backward. 8 and 16 of them are counted as for fused norms.
"""
COMPILED_SHARE = 0.4
"""Bytes that a compiler's fused element-wise operations move, against separate ones.

The operations of a forward pass of a layer of Llama 3 8B were counted: norms in fp32, rotations, activations and residuals. They move 590
kB for each token as separate operations of torch, and 190 to 220 kB fused.
"""
STREAMED_SHARE = 0.85
"""Share of the memory bandwidth that large copies reach: 0.79 on A100, 0.87 on H100, 0.83 on H200 (AI-benchmarking-guide of Azure)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Holds the seconds of one layer on one micro-batch by kind of work, each of shape (n,)."""

    matmul: Tensor
    elementwise: Tensor
    attention: Tensor
    context_parallel: Tensor
    """The part of the exchange that attention does not hide."""
    tensor_parallel: Tensor
    expert_parallel: Tensor
    weights: Tensor
    """Copies of gathered weights, and sums of gradients."""
    offload: Tensor
    """The part of the transfers between device and host that nothing hides."""

    @property
    def total(self) -> Tensor:
        """Return the seconds of all kinds together, shape (n,)."""
        computation = self.matmul + self.elementwise + self.attention + self.weights
        return computation + self.context_parallel + self.tensor_parallel + self.expert_parallel + self.offload


def layer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of one layer on one micro-batch, shape (n,).

    An asynchronous device takes its own time, or its host's time to launch the layer if that is longer. Otherwise the two add up. The
    device launches the operations of a graph itself.
    """
    device = layer_times(work, c).total
    launches = (1 - work.layout.cuda_graphs) * launched_operations(work)
    host = launches * c["layer_launch_s"] + _contention_time(work, c)
    return torch.where(work.machine.asynchronous > 0, torch.maximum(device, host), device + host)


def layer_times(work: Workload, c: Coefficients) -> LayerTimes:
    """Return the seconds of one layer's computation and communication by kind."""
    attention, matmul, elementwise = _attention_time(work, c), _matmul_time(work, c), _elementwise_time(work, c)
    times = LayerTimes(
        matmul=matmul,
        elementwise=elementwise,
        attention=attention,
        context_parallel=_exposed_context_time(work, attention, c),
        tensor_parallel=_exposed_tensor_time(work, matmul, c),
        expert_parallel=_exposed_expert_time(work, matmul + elementwise + attention, c),
        weights=weight_passes_time(held_per_layer(work), work),
        offload=torch.zeros_like(attention),
    )
    return dataclasses.replace(times, offload=(_offload_time(work) - times.total).clamp_min(0))


def launched_operations(work: Workload) -> Tensor:
    """Return the operations that a host launches for one layer, against those of a dense layer without recomputation, shape (n,)."""
    layout, shape = work.layout, work.shape
    exchanged = torch.where(layout.cp_mode == 0, layout.cp * MORE_OPERATIONS_IN_A_RING, MORE_OPERATIONS_IN_AN_EXCHANGE)
    experts = shape.expert_parameters * shape.routed / shape.expert_matmul_parameters.clamp_min(1)  # of an average layer
    expert_by_expert = work.formats.separate_experts * MORE_OPERATIONS_PER_EXPERT * experts / layout.ep
    more = torch.where(shape.routed > 0, MORE_OPERATIONS_WITH_EXPERTS + expert_by_expert, 0.0) + torch.where(layout.cp > 1, exchanged, 0.0)
    return 1 + elementwise_again(work) / 3 + more


def _matmul_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of a layer's matrix products with weights on one micro-batch, shape (n,).

    Narrow shards and small micro-batches make them less efficient, and each of many experts has few tokens. Frozen weights get no gradient.
    """
    shape, layout = work.shape, work.layout
    passes = 2 + work.formats.trained + matmul_again(work)
    dense = shape.layer_matmul_parameters - shape.expert_matmul_parameters
    seconds = passes * 2 * work.tokens * dense / layout.tp / (work.machine.matmul_flops_per_s * _efficiency(work, work.tokens, c))
    chosen = shape.expert_matmul_parameters / shape.expert_parameters.clamp_min(1)  # share of the experts that each token passes through
    per_expert = torch.where(shape.routed > 0, work.tokens * layout.ep * layout.etp / layout.tp * chosen, work.tokens)
    experts = passes * 2 * work.tokens * shape.expert_matmul_parameters / layout.tp * torch.where(layout.ep > 1, c["imbalance"], 1.0)
    return seconds + experts / (work.machine.matmul_flops_per_s * _efficiency(work, per_expert, c) * c["grouped_efficiency"])


def _efficiency(work: Workload, tokens: Tensor, c: Coefficients) -> Tensor:
    """Return the share of the peak that matrix products of `tokens` rows reach, shape (n,)."""
    width = work.shape.hidden / work.layout.tp
    share = c["matmul_efficiency"] * width / (width + c["narrow_width"]) * tokens / (tokens + c["few_tokens"])
    return share * torch.where(work.machine.eight_bit > 0, c["eight_bit_efficiency"], 1.0)


def _attention_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of a layer's attention, shape (n,).

    Flash attention skips what a causal mask hides. Otherwise all scores are computed, and written to memory between the operations.
    """
    shape, layout, machine = work.shape, work.layout, work.machine
    again = attention_again(work)
    passes = torch.where(layout.flash > 0, 1 + FLASH_BACKWARD, 3.0) + again
    attended = torch.where(layout.flash > 0, shape.attended, shape.seq_len)
    flops = passes * 4 * shape.query_width * attended * work.tokens / layout.tp
    width = shape.hidden / layout.tp
    rate = machine.attention_flops_per_s * c["matmul_efficiency"] * width / (width + c["narrow_width"]) * c["attention_efficiency"]
    scores = (1 + again / 3) * MOVED_SCORE_BYTES * shape.heads / layout.tp * shape.seq_len * work.tokens
    written = torch.where(layout.flash > 0, 0.0, scores / (machine.memory_bandwidth * c["memory_efficiency"]))
    return flops / rate + written


def _exposed_context_time(work: Workload, attention: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds of context-parallel exchange beyond what attention hides, shape (n,).

    A ring's transfers hide behind the blocks that are computed meanwhile; the other ways do not.
    """
    exchange = _context_parallel_time(work, c)
    exposed = torch.where(work.layout.cp_mode == 0, (exchange - attention).clamp_min(0), exchange)
    return torch.where(work.layout.cp > 1, exposed, 0.0)


def _context_parallel_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds in which context-parallel ranks exchange what attention needs of each other, shape (n,).

    ring         keys and values of every other rank arrive one after the other; in the backward pass again, with their gradients
    all-to-all   queries, keys, values and outputs change from all heads of some tokens to some heads of all tokens, and back
    all-gather   keys and values are gathered twice, and their gradients reduced
    """
    shape, layout, machine = work.shape, work.layout, work.machine
    group = CollectiveGroup.of(layout.cp, layout.tp, machine, work.devices)
    element = work.formats.element_bytes / layout.tp
    mine = 2 * work.tokens * shape.kv_width * element
    heads = 2 * work.tokens * (shape.query_width + shape.kv_width) * element
    again = 1 + attention_again(work)
    gathered = (again + 2) * gather_time(group, layout.cp * mine, machine, c)
    turned = 2 * (again + 1) * all_to_all_time(group, heads / 2, machine, c)
    return torch.where(layout.cp_mode == 1, turned, gathered)


def _elementwise_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of norms, rotations, activations and residuals, which memory bandwidth limits, shape (n,).

    The forward pass writes and reads its tensors once. The backward pass moves twice as much. Without sequence parallelism every rank
    computes the norms and residuals of all tokens. A loop over stacked experts moves the gradient of all of them for each.
    """
    layout = work.layout
    again = elementwise_again(work)
    passes = 6 + 2 * again
    whole = torch.where(layout.sequence_parallel > 0, 0.0, replicated_elements(work) * (1 - 1 / layout.tp))
    elements = moved_elements(work) + layout.wide_residuals * replicated_elements(work)
    moved = passes * (elements / layout.tp + whole) * work.formats.element_bytes * work.tokens
    experts = experts_per_layer(work)
    moved = moved * torch.where(layout.compiled > 0, COMPILED_SHARE, 1.0)
    looped = work.layout.expert_loop * work.formats.trained * INDEXED_GRADIENT_MOVES * work.shape.experts / work.layout.ep * experts
    moved = moved + looped * work.formats.element_bytes
    normed = layout.plain_norms * (PLAIN_NORM_BYTES + PLAIN_NORM_FORWARD_BYTES * again) * work.shape.hidden * work.tokens
    moved = moved + normed * torch.where(layout.sequence_parallel > 0, 1 / layout.tp, 1.0)
    quantised = QUANTISED_BYTES * work.machine.eight_bit * passes * moved_elements(work) / layout.tp * work.tokens
    return (moved + quantised) / (work.machine.memory_bandwidth * c["memory_efficiency"])


def weight_passes_time(parameters: Tensor, work: Workload) -> Tensor:
    """Return the seconds in which a micro-batch copies some weights and sums their gradients, shape (n,); tp divides `parameters`."""
    moved = work.moved_bytes * parameters / work.layout.tp
    return moved / (work.machine.memory_bandwidth * STREAMED_SHARE)


def _exposed_tensor_time(work: Workload, matmul: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds of tensor-parallel communication beyond what the layer's matrix products hide, shape (n,).

    Half of the backward pass's operations concern gradients of outputs. The others reduce gradients of inputs, and under sequence
    parallelism they gather the inputs again first. Some frameworks overlap these with the products of weights' and inputs' gradients
    (megatron/core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`).
    """
    layout, hidden = work.layout, c["overlap"].clamp_max(1)
    gathered, scattered = _tensor_operations(work, c)
    exchange = (1 + tensor_parallel_again(work) / 2) * TENSOR_PARALLEL_OPERATIONS / 2 * (gathered + scattered)
    in_parts = exchange - torch.minimum(exchange, matmul) * hidden
    gathered_again = layout.sequence_parallel * TENSOR_PARALLEL_OPERATIONS / 4 * gathered
    inputs = TENSOR_PARALLEL_OPERATIONS / 4 * (gathered + scattered)
    products = matmul / (2 + work.formats.trained + matmul_again(work))
    behind = exchange + gathered_again - torch.minimum(inputs, (1 + layout.sequence_parallel) * products * hidden)
    return torch.where(layout.overlap_tp > 0, in_parts, torch.where(work.formats.overlaps_tp_backward > 0, behind, exchange))


def _tensor_operations(work: Workload, c: Coefficients) -> tuple[Tensor, Tensor]:
    """Return the seconds of one tensor-parallel all-gather and of one reduce-scatter of a micro-batch's tokens, shape (n,) each."""
    layout, machine, formats = work.layout, work.machine, work.formats
    group = CollectiveGroup.of(layout.tp, torch.ones_like(layout.tp), machine, work.devices)
    numbers = work.tokens * work.shape.hidden
    narrow = layout.sequence_parallel * machine.eight_bit * formats.gathers_eight_bit
    gathered = gather_time(group, numbers * torch.where(narrow > 0, 1.0, formats.element_bytes), machine, c)
    return gathered, gather_time(group, numbers * formats.element_bytes, machine, c)


def _exposed_expert_time(work: Workload, computation: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds of the exchange of the experts' tokens beyond what the computation of another micro-batch hides, shape (n,)."""
    layout, exchange = work.layout, _expert_parallel_time(work, c)
    hidden = layout.overlap_ep * (layout.num_microbatches > 1) * c["overlap"].clamp_max(1) * computation
    return (exchange - hidden).clamp_min(0)


def _expert_parallel_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds in which tokens are sent to their experts and back, forward and backward, shape (n,).

    If several ranks split each expert, they gather the tokens of one another first.
    """
    layout, machine = work.layout, work.machine
    stride = torch.where(layout.etp < layout.tp, layout.etp, layout.tp)
    group = CollectiveGroup.of(layout.ep, stride, machine, work.devices)
    split = CollectiveGroup.of(layout.etp, torch.ones_like(layout.etp), machine, work.devices)
    payload = work.tokens * work.shape.routed * work.shape.hidden * work.formats.element_bytes / layout.tp
    operations = (1 + expert_parallel_again(work) / 2) * EXPERT_PARALLEL_OPERATIONS
    gathered = torch.where(work.shape.routed > 0, gather_time(split, payload * layout.etp, machine, c), 0.0)
    uneven = torch.where(layout.ep > 1, c["imbalance"], 1.0)
    token = work.tokens * work.shape.hidden * work.formats.element_bytes / layout.tp
    chosen = work.shape.experts * work.shape.expert_matmul_parameters / work.shape.expert_parameters.clamp_min(1)
    sparse = work.shape.routed / chosen.clamp_min(1)  # share of the layers that have experts
    once = sparse * deduplicated_time(group, uneven * token, chosen, machine, c)
    everywhere = sparse * gather_time(group, layout.ep * token, machine, c)
    sent = all_to_all_time(group, uneven * payload, machine, c)
    sent = torch.where(layout.dispatcher == DEDUPLICATED, once, torch.where(layout.dispatcher == ALL_GATHER, everywhere, sent))
    return operations * (sent + torch.where(layout.etp != layout.tp, gathered, 0.0))


def _offload_time(work: Workload) -> Tensor:
    """Return the seconds in which a layer's activations move to the host's memory and back, shape (n,)."""
    moved = activation_elements(work) / work.layout.tp * work.formats.element_bytes * work.tokens
    return torch.where(work.layout.offload_activations > 0, 2 * moved / work.machine.host_bandwidth, 0.0)


def _contention_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds that tensor-parallel operations wait for pipeline transfers between hosts, shape (n,).

    The model adds the latency between hosts for each operation and rank.
    """
    layout, machine = work.layout, work.machine
    waits = (layout.tp > 1) & (layout.pp > 1) & (work.hosts > 1)
    return torch.where(
        waits, c["contention"] * c["latency"] * c["network_latency"] * TENSOR_PARALLEL_OPERATIONS * layout.tp * machine.inter_latency, 0.0
    )
