"""Pipeline stages: which layers and parameters a rank holds.

Two ways to cut a model: equally many layers on each stage, the projection on top of the last stage's; or balanced, where the output
projection counts as the layers that take as long.
"""

import torch
from torch import Tensor

from oppa.cost.workload import Workload


def layers_per_stage(work: Workload) -> Tensor:
    """Layers of the first stage, or of the longest where they cannot be equally long, shape (n,)."""
    shape, layout = work.shape, work.layout
    projection = shape.head_parameters / shape.layer_matmul_parameters
    balanced = torch.minimum(((shape.layers + projection) / layout.pp).ceil(), shape.layers)
    counts = (layout.balanced > 0) & (layout.pp > 1) & (projection >= 1)
    return torch.where(counts, balanced, (shape.layers / layout.pp).ceil())


def first_ends(work: Workload) -> Tensor:
    """Weights of the first stage besides its layers: the embedding and, where there is no other stage, the output projection."""
    shape = work.shape
    alone = (work.layout.pp == 1) & (shape.tied == 0)
    return shape.embedding_parameters + torch.where(alone, shape.head_parameters, 0.0)


def held_per_layer(work: Workload) -> Tensor:
    """Weights of a layer that are not elsewhere for expert parallelism's sake, before tp splits them."""
    return work.shape.layer_parameters - work.shape.expert_parameters * (1 - 1 / work.layout.ep)


def stage_parameters(work: Workload) -> Tensor:
    """Weights of a rank of the first stage, split by tp."""
    return (layers_per_stage(work) * held_per_layer(work) + first_ends(work)) / work.layout.tp


def activation_elements(work: Workload) -> Tensor:
    """Numbers per token that a layer's backward pass needs, before tensor parallelism divides them."""
    shape = work.shape
    return 6 * shape.hidden + 2 * shape.kv_width + shape.ffn_tensors * shape.ffn
