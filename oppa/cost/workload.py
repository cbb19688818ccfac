"""Define the input of the cost model: columns of numbers, one row per configuration.

Configurations of a job and rows of a user's table have the same form here, so the same code predicts both.
All columns are float64 tensors of shape (n,). Sizes are in bytes, times in seconds.
"""

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients

WIDE_BYTES = 4
"""Bytes of a number in fp32."""
RECOMPUTE = ("none", "selective", "full")
SELECTIVE = ("scores", "attention", "operations")
"""Kinds of selective recomputation (`oppa.cost.recomputation`)."""
MODULES = {
    "core_attn": "core_again",
    "layernorm": "norms_again",
    "mlp": "network_again",
    "moe_act": "gates_again",
    "moe": "experts_again",
    "mla_up_proj": "latents_again",
}
"""Modules that selective recomputation of Megatron-LM may repeat (`--recompute-modules`), with the columns that state it."""
CP_MODES = ("ring", "all-to-all", "all-gather")
"""Ways in which context-parallel ranks attend to each other's tokens.

Keys and values pass around a ring, heads are exchanged for tokens, or every rank gathers all keys and values.
"""
ALL_TO_ALL, ALL_GATHER, DEDUPLICATED = range(3)
DISPATCHERS = ("all-to-all", "all-gather", "deduplicated")
"""Ways in which tokens reach their experts on other ranks.

Each copy of a token is sent to the rank of its expert, or every rank gathers all tokens. Deduplicated, a token is sent once to each host
and rank that has experts for it, and permuted on the way (DeepEP, HybridEP).
"""


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
    heads: Tensor
    query_width: Tensor
    """Width of all queries of a token, heads * head_dim; if that of attention's output differs, their mean."""
    kv_width: Tensor
    """Width of all keys of a token; if that of the values differs, their mean."""
    latent_width: Tensor
    """Width of the latents from which multi-head latent attention computes them, with the rotated key; 0 without it."""
    ffn: Tensor
    """Total width of the feed-forward networks that a token passes through in a layer, shared experts included."""
    gated: Tensor
    vocab: Tensor
    seq_len: Tensor
    layer_parameters: Tensor
    expert_parameters: Tensor
    """Parameters of a layer's experts, which expert parallelism shards; 0 without experts."""
    layer_matmul_parameters: Tensor
    """Weights of a layer that multiply each token."""
    expert_matmul_parameters: Tensor
    """The part of these in a token's experts; 0 if there are none."""
    experts: Tensor
    """Number of a layer's experts; 0 without experts."""
    routed: Tensor
    """Experts that each token is routed to; 0 without experts."""
    attended: Tensor
    """Tokens that a token attends to, on average: half of the sequence under a causal mask."""
    embedding_parameters: Tensor
    head_parameters: Tensor
    """Parameters of the output projection, counted also if it is tied to the embedding."""
    tied: Tensor
    logit_elements: Tensor
    """Logits of a token that a device keeps a copy of: all, or of a traced module those of its output projection and loss."""
    activation_elements: Tensor
    """Elements that a layer's backward pass needs of a token, as traced; 0 if they follow from the dimensions."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigurationFacts(Columns):
    """Describes the configuration, and what follows from its schedule."""

    dp: Tensor
    tp: Tensor
    pp: Tensor
    cp: Tensor
    """Context-parallel size: ranks that split the tokens of a sequence."""
    ep: Tensor
    etp: Tensor
    """Ranks that split each expert's weights; tp unless stated."""
    shards: Tensor
    """Ranks over which ZeRO shards: all that hold the same weights, or one of the groups of HSDP."""
    hpz: Tensor
    """Ranks of the groups that each keep all weights for the backward passes, under ZeRO++; 1 for none."""
    quantized_weights: Tensor
    """1 if weights are gathered in 8 bits (ZeRO++)."""
    quantized_gradients: Tensor
    """1 if gradients are reduced in 4 bits (ZeRO++)."""
    fp8_weights: Tensor
    """1 if 8-bit training keeps the weights of layers in 8 bits alone."""
    model_chunks: Tensor
    zero_stage: Tensor
    micro_batch: Tensor
    num_microbatches: Tensor
    recompute: Tensor
    """0 for none, 1 for selective, 2 for full."""
    core_again: Tensor
    """1 if attention between its projections is computed again under selective recomputation of modules; so are those that follow."""
    norms_again: Tensor
    network_again: Tensor
    """The feed-forward network of dense layers."""
    gates_again: Tensor
    """The activation of experts."""
    experts_again: Tensor
    """Routed experts, with the exchange of their tokens."""
    latents_again: Tensor
    """Queries, keys and values of multi-head latent attention, from their latents."""
    recompute_layers: Tensor
    """Layers of a stage that recompute; infinity for all."""
    sequence_parallel: Tensor
    """1 if norms and residuals are split over the tensor-parallel ranks, too."""
    cp_mode: Tensor
    """Index into CP_MODES."""
    dispatcher: Tensor
    """Index into DISPATCHERS."""
    overlap_ep: Tensor
    """1 if the exchange of the experts' tokens overlaps the computation of another micro-batch."""
    narrow_gradients: Tensor
    """1 if gradients are kept and reduced in 16 bits, whatever the framework's usual format."""
    wide_gradients: Tensor
    """1 if gradients accumulate and are reduced in 32 bits, whatever the framework's usual format."""
    moment_share: Tensor
    """Bytes of the optimizer's moments over those in their usual format."""
    flash: Tensor
    """1 if attention never writes its scores to memory."""
    loss_bytes: Tensor
    """Bytes per number in torch's own cross-entropy, which keeps copies of the logits; 0 if the loss is fused."""
    chunked_loss: Tensor
    """1 if the loss computes its logits in chunks of tokens and keeps none."""
    wide_residuals: Tensor
    """1 if residuals, and inputs and outputs of norms, have twice the bytes of other activations; 0 otherwise."""
    plain_norms: Tensor
    """1 if norms are separate operations of torch in fp32; 0 if they are fused, by a kernel or by a compiler."""
    expert_loop: Tensor
    """1 if a loop indexes stacked weights expert by expert; 0 if their matrix products are grouped."""
    offload_activations: Tensor
    offload_optimizer: Tensor
    offload_parameters: Tensor
    """1 if ZeRO 3 keeps its shards of weights and gradients in the host's memory, with the optimizer's states."""
    bubble: Tensor
    """Idle time of a stage per step, in micro-batches: (pp - 1) / model_chunks, or a third of it in zero-bubble schedules."""
    in_flight: Tensor
    """Number of micro-batches whose activations the first stage holds at once."""
    last_in_flight: Tensor
    """The same for the last stage: one, or parts of several with more chunks. Under GPipe it is all, and in a V as on the first stage."""
    balanced: Tensor
    """1 if stages are cut so that the output projection gets its share of the time; 0 if they hold equally many layers."""
    overlap_exchange: Tensor
    """1 if the exchange of gradients overlaps the backward pass that computes them."""
    overlap_gather: Tensor
    """1 if the gathering of updated parameters overlaps the forward pass that uses them."""
    overlap_p2p: Tensor
    ends_together: Tensor
    """1 if the first and the last stage are on the same ranks, as under schedules that run through the stages and back."""
    overlap_tp: Tensor
    """1 if tensor-parallel communication runs in parts, at the same time as the matrix products that need it."""
    compiled: Tensor
    """1 if a compiler fuses the element-wise operations."""
    cuda_graphs: Tensor
    """1 if a layer's operations are one graph, so that its host launches none of them."""
    bucket_bytes: Tensor
    """Bytes of gradients that replicas exchange in one operation."""
    last_bucket_bytes: Tensor
    """Bytes of gradients that are exchanged when the backward pass has ended; a usual bucket if the size is unknown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceFacts(Columns):
    """Describes the devices and their links."""

    matmul_flops_per_s: Tensor
    """Peak of matrix products with weights, in the job's precision."""
    attention_flops_per_s: Tensor
    """Peak of the attention's products, which stay in 16 bits when weights have 8."""
    eight_bit: Tensor
    """1 if matrix products with weights have 8-bit inputs."""
    memory_bandwidth: Tensor
    usable_bytes: Tensor
    devices_per_host: Tensor
    """Devices that the links within a host connect; more than a host's where such links join several hosts."""
    several_hosts: Tensor
    """1 where such links join several hosts, as in a rack."""
    intra_bandwidth: Tensor
    intra_latency: Tensor
    pair_devices: Tensor
    """Neighbouring devices with a faster link than others of their host; 1 for none."""
    pair_bandwidth: Tensor
    pair_latency: Tensor
    inter_bandwidth: Tensor
    inter_latency: Tensor
    ports: Tensor
    host_bandwidth: Tensor
    """Bytes per second between a device and the memory of its host, in one direction."""
    stalls: Tensor
    """1 if pipelines over hosts may stall as the framework's runs elsewhere did."""
    asynchronous: Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FormatFacts(Columns):
    """Describes the number formats, and when the framework exchanges, gathers and keeps what it shards; bytes are per element."""

    element_bytes: Tensor
    """An activation."""
    gate_tensors: Tensor
    """Number of tensors of width `ffn` that the backward pass of a gated network needs; 2 if it is not gated."""
    weight_bytes: Tensor
    """A weight that a rank holds, below ZeRO 3."""
    gathered_weight_bytes: Tensor
    """A weight as it is gathered for the passes."""
    sharded_weight_bytes: Tensor
    """A weight between the passes, under ZeRO 3."""
    end_bytes: Tensor
    """Additional bytes of a weight of the embedding or the output projection, if those of layers are quantised."""
    gradient_bytes: Tensor
    """A gradient, its accumulated copy included; 0 for frozen weights."""
    optimizer_bytes: Tensor
    """The moments of a weight and, in 16-bit precisions, its fp32 copy."""
    moment_bytes: Tensor
    """The moments alone."""
    update_bytes: Tensor
    """Intermediate results of a weight's update."""
    reduced_bytes: Tensor
    """A gradient as replicas exchange it."""
    overlaps_tp_backward: Tensor
    """1 if tensor-parallel communication of inputs and their gradients overlaps the backward pass's matrix products."""
    separate_experts: Tensor
    """1 if the experts of a layer are computed one by one."""
    gathers_eight_bit: Tensor
    """1 if tensor-parallel ranks gather the inputs of 8-bit matrix products in 8 bits."""
    selective: Tensor
    """Index into SELECTIVE."""
    eight_bit_copy_bytes: Tensor
    """The copies of a layer's weight that 8-bit training keeps in addition to it."""
    eight_bit_saving: Tensor
    """Share of a layer's activations that 8-bit training saves."""
    moved_bytes: Tensor
    """Bytes per weight that a micro-batch moves without a matrix product: copies of gathered weights, and sums of gradients."""
    trained: Tensor
    """Share of the weights that train; the others are frozen."""
    gathered_layers: Tensor
    gathered_parameters: Tensor
    gathers_ends: Tensor
    """1 if embedding and output projection are gathered at the loss under ZeRO 3, and the gradient of the latter is whole."""
    gathers_each: Tensor
    """1 if weights are gathered for each micro-batch under ZeRO 2."""
    prefetches: Tensor
    reduces_each: Tensor
    pipelines_reduce_once: Tensor
    """1 if stages of a pipeline keep gathered weights and whole gradients until their last micro-batch."""
    gradient_buffer: Tensor
    frozen_unit_inputs: Tensor
    """Gradients of the input of a unit of frozen weights that ZeRO 3 keeps until the backward pass ends."""
    gradients_sharded_from: Tensor
    """ZeRO stage from which each rank keeps only its share of the gradients."""
    gradients_scattered_from: Tensor
    """ZeRO stage from which gradients are reduced into shards."""
    stall_probability_per_host: Tensor
    """Probability that a host is slow in a run, so that every micro-batch of a pipeline over hosts waits."""
    stall_s: Tensor
    """Seconds that each micro-batch waits then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Holds n configurations, each with its model and its machine."""

    shape: ModelFacts
    layout: ConfigurationFacts
    machine: DeviceFacts
    formats: FormatFacts

    def __len__(self) -> int:
        return len(self.layout.dp)

    @property
    def tokens(self) -> Tensor:
        """Return the tokens of one micro-batch that a rank computes, shape (n,); context parallelism splits them."""
        return self.layout.micro_batch * self.shape.seq_len / self.layout.cp

    @property
    def devices(self) -> Tensor:
        """Return the number of ranks, shape (n,)."""
        return self.replicas * self.layout.tp * self.layout.pp

    @property
    def replicas(self) -> Tensor:
        """Return the ranks that hold the same weights and exchange gradients, shape (n,): dp * cp."""
        return self.layout.dp * self.layout.cp

    @property
    def gradient_bytes(self) -> Tensor:
        """Return the bytes of a gradient, its accumulated copy included, shape (n,)."""
        usual = self.formats.gradient_bytes + torch.where(self._widened, 4 * self.formats.trained, 0.0)
        return self._narrowed(usual, 2 * self.formats.trained)

    @property
    def reduced_bytes(self) -> Tensor:
        """Return the bytes of a gradient as replicas exchange it, shape (n,)."""
        usual = torch.where(self._widened, self.formats.reduced_bytes.clamp_min(4), self.formats.reduced_bytes)
        return self._narrowed(usual, 2 * torch.ones_like(self.formats.trained))

    @property
    def moved_bytes(self) -> Tensor:
        """Return the bytes per weight that a micro-batch moves without a matrix product, shape (n,).

        A 16-bit gradient is added to its 32-bit sum: 2 + 4 bytes are read, and 4 written.
        """
        return self.formats.moved_bytes + torch.where(self._widened, 10 * self.formats.trained, 0.0)

    @property
    def update_bytes(self) -> Tensor:
        """Return the bytes of intermediate results of a weight's update, shape (n,): with narrow gradients, their fp32 copy, too."""
        return self.formats.update_bytes + self.formats.gradient_bytes * (self.gradient_bytes < self.formats.gradient_bytes)

    @property
    def optimizer_bytes(self) -> Tensor:
        """Return the bytes that the optimizer keeps of a weight, shape (n,)."""
        return self.formats.optimizer_bytes - (1 - self.layout.moment_share) * self.formats.moment_bytes

    @property
    def _widened(self) -> Tensor:
        """Return whether 32-bit sums of gradients are kept next to the framework's 16-bit gradients, shape (n,)."""
        return (self.layout.wide_gradients > 0) & (self.formats.gradient_bytes < WIDE_BYTES * self.formats.trained)

    def _narrowed(self, usual: Tensor, narrow: Tensor) -> Tensor:
        narrowed = (self.layout.narrow_gradients > 0) & (self.formats.element_bytes < WIDE_BYTES)
        return torch.where(narrowed, torch.minimum(usual, narrow), usual)

    @property
    def hosts(self) -> Tensor:
        """Return the number of hosts that the ranks occupy, shape (n,)."""
        return (self.devices / self.machine.devices_per_host).ceil()

    def take(self, rows: Tensor | slice) -> "Workload":
        """Return some of the configurations."""
        shape, layout, machine, formats = self.shape.take(rows), self.layout.take(rows), self.machine.take(rows), self.formats.take(rows)
        return Workload(shape=shape, layout=layout, machine=machine, formats=formats)


Formula = Callable[[Workload, Coefficients], Tensor]
"""(configurations, coefficients) -> step time in seconds, or memory in bytes, shape (n,)"""
