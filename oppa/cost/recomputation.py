"""Count what the backward pass computes again, and the activations that layers keep for it.

Full recomputation keeps a layer's input alone. Frameworks mean different things by selective recomputation (SELECTIVE):

    scores       attention between its projections (Korthikanti et al. 2022, section 5). Queries, keys, values and outputs are kept, so it
                 frees only scores that are written to memory. Megatron-LM may repeat other modules in addition, or instead (MODULES)
    attention    attention with its norm and its projections
    operations   all but attention and every second matrix product (torchtitan's `SelectiveAC`): keys, the output projection of attention,
                 and one product of the feed-forward network are computed again
"""

import torch
from torch import Tensor

from oppa.cost.stages import activation_elements, layers_per_stage, network_tensors, norm_copies, routed_elements, routed_width
from oppa.cost.workload import SELECTIVE, Workload

_SCORES, _ATTENTION, _OPERATIONS = range(len(SELECTIVE))


def recomputed(work: Workload) -> Tensor:
    """Return the share of a stage's layers that compute their whole forward pass again, shape (n,)."""
    share = (work.layout.recompute_layers / layers_per_stage(work)).clamp_max(1)
    return torch.where(work.layout.recompute == 2, share, 0.0)


def attention_again(work: Workload) -> Tensor:
    """Return the share of a stage's attention that is computed again, shape (n,)."""
    return _again(work, scores=work.layout.core_again, attention=1.0, operations=0.0)


def matmul_again(work: Workload) -> Tensor:
    """Return the share of a stage's matrix products with weights that are computed again, shape (n,)."""
    shape, layout = work.shape, work.layout
    width = shape.query_width + shape.kv_width
    projections, every_second = (shape.hidden * each / shape.layer_matmul_parameters for each in (2 * width, width + shape.ffn))
    network = layout.network_again * (shape.experts == 0) * shape.hidden * shape.ffn * (2 + shape.gated)
    latents = layout.latents_again * shape.latent_width / 2 * (shape.query_width + 2 * shape.kv_width)
    modules = (network + latents + layout.experts_again * shape.expert_matmul_parameters) / shape.layer_matmul_parameters
    return _again(work, scores=modules.clamp_max(1), attention=projections.clamp_max(1), operations=every_second.clamp_max(1))


def elementwise_again(work: Workload) -> Tensor:
    """Return the share of a stage's norms, activations and residuals that are computed again, shape (n,)."""
    modules, attention = (each(work) / activation_elements(work) for each in (_freed_by_modules, _attention_elements))
    return _again(work, scores=modules.clamp_max(1), attention=attention.clamp_max(1), operations=1.0)


def tensor_parallel_again(work: Workload) -> Tensor:
    """Return the share of a forward pass's tensor-parallel operations that are repeated, shape (n,).

    Attention has half of them. torchtitan keeps the results of reduce-scatters, which are half of them, too.
    """
    return _again(work, scores=0.5 * work.layout.network_again * (work.shape.experts == 0), attention=0.5, operations=0.5)


def expert_parallel_again(work: Workload) -> Tensor:
    """Return the share of a forward pass's exchange of the experts' tokens that is repeated, shape (n,); torchtitan keeps its results."""
    return _again(work, scores=work.layout.experts_again, attention=0.0, operations=0.0)


def selective_elements(work: Workload, everything: Tensor) -> Tensor:
    """Return the activations per token, of `everything` but scores, that a layer keeps under selective recomputation, shape (n,)."""
    shape = work.shape
    network = (everything - _attention_elements(work) - norm_copies(work) / 2).clamp_min(0)
    results = (2 + work.layout.wide_residuals) * shape.hidden + 2 * shape.query_width + shape.kv_width + shape.ffn
    modules = (everything - _freed_by_modules(work)).clamp_min(0)
    return of_selective(work, scores=modules, attention=network, operations=results.minimum(everything))


def replicated_again(work: Workload) -> Tensor:
    """Return the share of the inputs and outputs of norms that layers do not keep, shape (n,).

    A layer that is computed again keeps one of four, its input. torchtitan keeps the result of the last product, too.
    """
    selective = of_selective(work, scores=0.5 * work.layout.norms_again, attention=0.25, operations=0.5)
    return torch.where(work.layout.recompute == 1, selective, 0.75 * recomputed(work))


def of_selective(work: Workload, *, scores: Tensor | float, attention: Tensor | float, operations: Tensor | float) -> Tensor:
    """Return the value of each row's kind of selective recomputation, shape (n,)."""
    kind = work.formats.selective
    return torch.where(kind == _OPERATIONS, operations, torch.where(kind == _ATTENTION, attention, scores))


def _again(work: Workload, *, scores: Tensor | float, attention: Tensor | float, operations: Tensor | float) -> Tensor:
    selective = of_selective(work, scores=scores, attention=attention, operations=operations)
    return torch.where(work.layout.recompute == 1, selective, recomputed(work))


def _freed_by_modules(work: Workload) -> Tensor:
    """Return the activations per token that recomputed modules free, shape (n,): what their backward pass needs but their input.

    The outputs of two norms are inputs of matrix products, which the norms compute again. The activation of experts frees their second
    input.
    """
    shape, layout = work.shape, work.layout
    network = layout.network_again * (shape.experts == 0) * network_tensors(work) * shape.ffn
    experts = torch.maximum(layout.experts_again * routed_elements(work), layout.gates_again * routed_width(work))
    latents = layout.latents_again * (shape.latent_width > 0) * (shape.query_width + 2 * shape.kv_width)
    return layout.norms_again * 2 * shape.hidden + network + experts + latents


def _attention_elements(work: Workload) -> Tensor:
    """Return the activations per token that recomputation of attention frees, shape (n,): all of its own but the input of its norm."""
    return work.shape.hidden + 2 * work.shape.query_width + 2 * work.shape.kv_width
