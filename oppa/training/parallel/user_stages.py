"""Train a user's module, built from the parts that its entry point returns (`model.user_module`), under any layout with tp = 1."""

import functools
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oppa.training.data.sources import source_of
from oppa.training.model.stage import DTYPES
from oppa.training.model.user_module import parts_of
from oppa.training.parallel.data_parallel import shard_module
from oppa.training.parallel.extra_parameters import recompute_of
from oppa.training.parallel.mesh import Mesh
from oppa.trials.trial_folder import TrialSpec


class UserStage(nn.Module):
    """Runs consecutive parts, which `made` creates; its output is cast to `dtype`, unless it has the head."""

    def __init__(
        self,
        parts: range,
        layers: int,
        made: Callable[..., nn.Module],
        *,
        recompute: Callable[[int], str] = lambda _: "none",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.recompute, self.dtype = recompute, dtype
        self.embedding = made("embed") if 0 in parts else None
        self.blocks = nn.ModuleDict({str(index): made("block", index) for index in (part - 1 for part in parts if 1 <= part <= layers)})
        self.head = made("head") if layers + 1 in parts else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the parts to the input of the first one, and return the output of the last one."""
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if self.embedding is not None:
                x = self.embedding(x)
            for layer, block in enumerate(self.blocks.values()):
                x = checkpoint(block, x, use_reentrant=False) if self.recompute(layer) == "full" else block(x)
            return x.to(self.dtype) if self.head is None else self.head(x)


class UserModule:
    """Builds the stages of a user's module."""

    def __init__(self, spec: TrialSpec, mesh: Mesh) -> None:
        self._spec, self._mesh, self._parts = spec, mesh, parts_of(spec.model)
        self._dtype = DTYPES[spec.training.precision]
        self.loss = self._parts.loss

    def stage(self, parts: range, *, weights: bool = True) -> UserStage:
        """Build consecutive parts, sharded one by one, so that at most one whole block exists at a time.

        They always have initial weights, because their constructors may create other state, too.
        """
        recompute, layers = functools.partial(recompute_of, self._spec.configuration), self._spec.model.layers
        stage = UserStage(parts, layers, self._made, recompute=recompute, dtype=self._dtype)
        shard_module(stage, self._spec.configuration, self._mesh, self._dtype)
        return stage

    def boundary(self, part: int) -> Tensor:
        """Return the input of a part on the meta device: the parts before it run there on the shapes of a micro-batch."""
        size, layers = self._spec.configuration.micro_batch, self._spec.model.layers
        x = source_of(self._spec).batch(0, range(size)).inputs.to("meta")
        with torch.device("meta"), torch.no_grad():
            if part > 0:
                x = self._parts.embed()(x)
            for index in range(min(part - 1, layers)):
                x = self._parts.block(index)(x)
            if part == layers + 2:
                x = self._parts.head()(x)
        return x.to(self._dtype).requires_grad_() if part > 0 else x

    def _made(self, part: str, *index: int) -> nn.Module:
        torch.manual_seed(zlib.crc32(f"{self._spec.training.seed}/{part}{index}".encode()))
        with torch.device(self._mesh.device):
            module: nn.Module = getattr(self._parts, part)(*index)
        if part == "block":
            shard_module(module, self._spec.configuration, self._mesh, self._dtype)
        return module
