"""Count the layers and the parameters that a rank of a pipeline stage holds.

A model is cut in one of two ways. Either all stages have equally many layers, and the last one holds the output projection in addition.
Or the stages are balanced: the output projection then counts as many layers as take equally long.
"""

import torch
from torch import Tensor

from oppa.cost.workload import Workload


def layers_per_stage(work: Workload) -> Tensor:
    """Return the layers of the first stage, shape (n,); if stages differ, those of the longest."""
    shape, layout = work.shape, work.layout
    projection = shape.head_parameters / shape.layer_matmul_parameters
    balanced = torch.minimum(((shape.layers + projection) / layout.pp).ceil(), shape.layers)
    counts = (layout.balanced > 0) & (layout.pp > 1) & (projection >= 1)
    return torch.where(counts, balanced, (shape.layers / layout.pp).ceil())


def first_ends(work: Workload) -> Tensor:
    """Return the number of weights that the first stage holds outside its layers, shape (n,).

    They are the embedding and, if there is only one stage, the output projection unless it is tied.
    """
    shape = work.shape
    alone = (work.layout.pp == 1) & (shape.tied == 0)
    return shape.embedding_parameters + torch.where(alone, shape.head_parameters, 0.0)


def held_per_layer(work: Workload) -> Tensor:
    """Return the weights of a layer that stay on a rank under expert parallelism, before tp splits them, shape (n,)."""
    return work.shape.layer_parameters - work.shape.expert_parameters * (1 - 1 / work.layout.ep)


def stage_parameters(work: Workload) -> Tensor:
    """Return the weights that each rank of the first stage holds, tp applied, shape (n,)."""
    return (layers_per_stage(work) * held_per_layer(work) + first_ends(work)) / work.layout.tp


def activation_elements(work: Workload) -> Tensor:
    """Return how many activations per token a layer's backward pass needs, before tensor parallelism divides them, shape (n,)."""
    shape = work.shape
    return 6 * shape.hidden + 2 * shape.kv_width + shape.ffn_tensors * shape.ffn
