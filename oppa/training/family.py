"""What is trained, as those see it who cut it into stages and step it: a transformer of oppa's own, or somebody's own module."""

from typing import Protocol

import torch
from torch import Tensor, nn

from oppa.training.data_parallel import shard
from oppa.training.images import side_of
from oppa.training.mesh import Axis, Mesh
from oppa.training.model import Stage
from oppa.training.tensor_parallel import Slice, cross_entropy
from oppa.training.weights import materialise
from oppa.trials.wire import TrialSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Family(Protocol):
    """A model that is a chain of parts: something before the first block, each block, and something behind the last."""

    def stage(self, parts: range, *, weights: bool = True) -> nn.Module:
        """These consecutive parts with their initial weights, sharded over the replicas where the ZeRO stage asks for it.

        Without `weights` they may be anything: whoever asks will fill them.
        """
        ...

    def boundary(self, part: int) -> Tensor:
        """What part number `part` gets of a micro-batch, on the meta device; 0 is the input, the number of parts the output."""
        ...

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a micro-batch."""
        ...


class Transformer:
    """Whatever `oppa.problem.model` describes."""

    def __init__(self, spec: TrialSpec, mesh: Mesh) -> None:
        self._spec, self._mesh, self._tp = spec, mesh, _slice(mesh.tp)
        self._dtype = DTYPES[spec.training.precision]

    def stage(self, parts: range, *, weights: bool = True) -> Stage:
        """These parts, sharded over the replicas where the ZeRO stage asks for it; without `weights`, in memory as it is found."""
        spec, configuration, mesh = self._spec, self._spec.configuration, self._mesh
        with torch.device("meta"):
            stage = Stage(
                spec.model,
                parts,
                self._tp,
                recompute=configuration.recompute,
                dtype=self._dtype,
                ep=_slice(mesh.ep),
                micro_batches=configuration.num_microbatches,
            )
        shard(stage, configuration, mesh)
        if weights:
            materialise(stage, seed=spec.training.seed, layers=spec.model.layers, device=mesh.device)
        else:
            stage.to_empty(device=mesh.device)
        return stage

    def boundary(self, part: int) -> Tensor:
        """Tokens or images, the residual stream, or this rank's logits; no micro-batch is spent on finding out."""
        model, size = self._spec.model, self._spec.configuration.micro_batch
        if part == 0 and model.patch:
            return torch.empty(size, 3, side_of(model), side_of(model), device="meta")
        if part == 0:
            return torch.empty(size, model.seq_len, dtype=torch.long, device="meta")
        width = model.hidden if part < model.layers + 2 else len(self._tp.of(model.vocab))
        rows = (size,) if model.patch and part == model.layers + 2 else (size, model.seq_len)
        return torch.empty(*rows, width, dtype=self._dtype, device="meta", requires_grad=True)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, over this rank's slice of the vocabulary."""
        return cross_entropy(output, targets, self._spec.model.vocab, self._tp)


def _slice(axis: Axis) -> Slice:
    return Slice(axis.index, axis.size, axis.group)
