"""Count the layers and the parameters that a rank of a pipeline stage holds.

A model is cut in one of two ways. Either all stages have equally many layers, and the last one holds the output projection in addition.
Or the stages are balanced: the output projection then counts as many layers as take equally long.
"""

import torch
from torch import Tensor

from oppa.cost.workload import DEDUPLICATED, Workload


def layers_per_stage(work: Workload) -> Tensor:
    """Return the layers of the first stage, shape (n,); if stages differ, those of the longest."""
    shape, layout = work.shape, work.layout
    projection = shape.head_parameters / shape.layer_matmul_parameters
    balanced = torch.minimum(((shape.layers + projection) / layout.pp).ceil(), shape.layers)
    counts = (layout.balanced > 0) & (layout.pp > 1) & (projection >= 1)
    return torch.where(counts, balanced, (shape.layers / layout.pp).ceil())


def first_ends(work: Workload) -> Tensor:
    """Return the number of weights that the first stage holds outside its layers, shape (n,).

    They are the embedding and, on ranks that hold both ends, the output projection unless it is tied.
    """
    shape = work.shape
    return shape.embedding_parameters + torch.where(holds_both_ends(work) & (shape.tied == 0), shape.head_parameters, 0.0)


def holds_both_ends(work: Workload) -> Tensor:
    """Return where the embedding and the output projection are on the same ranks, shape (n,): without a pipeline, and in a V."""
    return (work.layout.pp == 1) | (work.layout.ends_together > 0)


def held_per_layer(work: Workload) -> Tensor:
    """Return the weights of a layer that stay on a rank under expert parallelism, before tp splits them, shape (n,).

    If fewer ranks split each expert than split the other layers, a rank holds so much more of its experts.
    """
    return work.shape.layer_parameters - work.shape.expert_parameters + work.layout.tp * experts_per_layer(work)


def experts_per_layer(work: Workload) -> Tensor:
    """Return the weights of a layer's experts that a rank holds, shape (n,)."""
    return work.shape.expert_parameters / (work.layout.ep * work.layout.etp)


def expert_shards(work: Workload) -> Tensor:
    """Return the ranks over which ZeRO shards what a rank holds of the experts, shape (n,): those that hold the same experts."""
    layout = work.layout
    return (layout.shards * layout.tp / (layout.ep * layout.etp)).clamp_min(1)


def expert_replicas(work: Workload) -> Tensor:
    """Return the ranks that hold the same experts and exchange their gradients, shape (n,)."""
    layout = work.layout
    return (work.replicas * layout.tp / (layout.ep * layout.etp)).clamp_min(1)


def stage_experts(work: Workload) -> Tensor:
    """Return the weights of experts that each rank of the first stage holds, shape (n,)."""
    return layers_per_stage(work) * experts_per_layer(work)


def sharded_parameters(work: Workload, held: Tensor) -> Tensor:
    """Return a rank's share of what ZeRO shards, shape (n,), if it holds `held` weights with those of a stage's experts."""
    experts = stage_experts(work)
    return (held - experts) / work.layout.shards + experts / expert_shards(work)


def stage_parameters(work: Workload) -> Tensor:
    """Return the weights that each rank of the first stage holds, tp applied, shape (n,)."""
    return (layers_per_stage(work) * held_per_layer(work) + first_ends(work)) / work.layout.tp


def waits_for_last(work: Workload) -> Tensor:
    """Return True where stages of a pipeline keep gathered weights and whole gradients until their last micro-batch, shape (n,)."""
    return (work.formats.pipelines_reduce_once > 0) & (work.layout.pp > 1)


def activation_elements(work: Workload) -> Tensor:
    """Return how many activations per token a layer's backward pass needs, before tensor parallelism divides them, shape (n,).

    They are those that `replicated_elements` counts, queries and outputs of attention, keys and values, and the feed-forward network's.
    A traced module has its own number, without expert parallelism.
    """
    shape = work.shape
    attention = 2 * shape.query_width + 2 * shape.kv_width + 2 * shape.latent_width  # latents before and after their norms
    counted = replicated_elements(work) + attention + network_tensors(work) * shape.ffn + _dispatched_copies(work) * _dispatched(work)
    traced = shape.activation_elements + _gathered_copies(work) * _dispatched(work)
    return torch.where(shape.activation_elements > 0, traced, counted)


def routed_elements(work: Workload) -> Tensor:
    """Return how many of them depend on the number of tokens that experts get, shape (n,); 0 without experts."""
    return network_tensors(work) * routed_width(work) + _dispatched_copies(work) * _dispatched(work)


def routed_width(work: Workload) -> Tensor:
    """Return the width of all experts of a token together, on an average layer, shape (n,); 0 without experts."""
    return work.shape.expert_matmul_parameters / (work.shape.hidden * (2 + work.shape.gated))


def moved_elements(work: Workload) -> Tensor:
    """Return how many activations per token a layer's forward pass writes, before tensor parallelism divides them, shape (n,).

    Tokens on their way to experts and back are copied, but no copy is kept. They are permuted, and expert-parallel ranks permute what they
    receive again, unless it arrives in order. The copies are counted in nine runs of a mixture in Megatron-LM (vuiseng9's tutorials).
    """
    again = (work.layout.ep > 1) & (work.layout.dispatcher != DEDUPLICATED)
    copies = 2 + torch.where(again, 2.0, 0.0) + _gathered_copies(work) - _dispatched_copies(work)
    return activation_elements(work) + copies * _dispatched(work)


def network_tensors(work: Workload) -> Tensor:
    """Return the tensors that a feed-forward network keeps, each as wide as its inner layer, shape (n,)."""
    return torch.where(work.shape.gated > 0, work.formats.gate_tensors, 2.0)


def _dispatched(work: Workload) -> Tensor:
    """Return the numbers of one copy of a token for each of its experts, shape (n,)."""
    return work.shape.routed * work.shape.hidden


def _dispatched_copies(work: Workload) -> Tensor:
    """Return how many such copies the backward pass needs, shape (n,): the experts' inputs, and what the router's weights multiply.

    Permutations, their inverses and all-to-alls keep indices alone. A fused gate applies the router's weights, and keeps nothing for it.
    """
    fused = (work.shape.gated > 0) & (work.formats.gate_tensors < 4)
    return torch.where(fused, 1.0, 2.0) + _gathered_copies(work)


def _gathered_copies(work: Workload) -> Tensor:
    """Return how many more copies the ranks that split an expert gather from each other, shape (n,)."""
    layout = work.layout
    return torch.where(layout.etp > layout.tp, layout.etp / layout.tp - 1, 0.0)


def norm_copies(work: Workload) -> Tensor:
    """Return how many more activations per token the two norms keep if they are separate operations of torch, shape (n,).

    Each keeps its input in fp32 in place of 16 bits, and its output before the multiplication with its weights (`LlamaRMSNorm` of
    Transformers).
    """
    return work.layout.plain_norms * 4 * work.shape.hidden


def replicated_elements(work: Workload) -> Tensor:
    """Return how many of them tensor parallelism alone does not divide, shape (n,): inputs and outputs of the two norms."""
    return 4 * work.shape.hidden
