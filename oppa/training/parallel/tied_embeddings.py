"""Keep a tied embedding equal under pipeline parallelism: the first stage embeds with it, and the last one has a copy as output head.

Both start with the same weights and get the sum of both gradients, so they stay equal (as in Megatron-LM).
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from oppa.training.model.weights import local_gradient
from oppa.training.parallel.mesh import Mesh
from oppa.training.profiler.memory import beyond_the_limit

COPIES = ("embedding.weight", "head.weight")
"""Names of the two copies in their stages."""


class TiedEmbeddings:
    """Holds the copies of the embedding on this rank: none, one, or both if the last stage is on the first rank."""

    def __init__(self, stages: Sequence[nn.Module], mesh: Mesh) -> None:
        named = [entry for stage in stages for entry in stage.named_parameters()]
        self._copies = [parameter for name, parameter in named if name.removeprefix("module.") in COPIES]
        self._ends: dist.ProcessGroup | None = None
        if len(self._copies) == 1:
            with beyond_the_limit(mesh.device):
                self._ends = dist.new_group([mesh.pp.ranks[0], mesh.pp.ranks[-1]], use_local_synchronization=True)

    def sum_gradients(self) -> None:
        """Set the gradient of each copy to the sum of both."""
        gradients = [local_gradient(copy) for copy in self._copies]
        if len(gradients) == 2:
            gradients[0] += gradients[1]
            gradients[1].copy_(gradients[0])
        elif gradients:
            dist.all_reduce(gradients[0], group=self._ends)
