"""Define the interface of a model that is split into stages and trained: oppa's transformer, or a user's module."""

import dataclasses
import functools
from typing import Protocol

import torch
from torch import Tensor, nn

from oppa.training.data.images import side_of
from oppa.training.model.stage import DTYPES, ModelStage
from oppa.training.model.tensor_parallel import IGNORED, Slice, cross_entropy
from oppa.training.model.weights import Pretrained, materialise
from oppa.training.parallel.data_parallel import shard
from oppa.training.parallel.extra_parameters import recompute_of, sequence_parallel
from oppa.training.parallel.mesh import Mesh, MeshAxis
from oppa.trials.trial_folder import TrialSpec


class Family(Protocol):
    """Divides a model into a chain of parts: one before the first block, each block, and one after the last block."""

    def stage(self, parts: range, *, weights: bool = True) -> nn.Module:
        """Build consecutive parts, sharded over the replicas if the ZeRO stage requires it.

        They have their initial weights; without `weights`, the values are undefined and the caller fills them.
        """

    def boundary(self, part: int) -> Tensor:
        """Return the input of a part for a micro-batch, on the meta device; the number of parts refers to the model's output."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch."""


class Transformer:
    """Builds the models that `oppa.problem.model` describes."""

    def __init__(self, spec: TrialSpec, mesh: Mesh) -> None:
        self._spec, self._mesh, self._cp = spec, mesh, _slice(mesh.cp)
        self._tp = dataclasses.replace(_slice(mesh.tp), sequence=sequence_parallel(spec.configuration))
        self._dtype = DTYPES[spec.training.precision]

    def stage(self, parts: range, *, weights: bool = True) -> ModelStage:
        """Build these parts, sharded over the replicas if the ZeRO stage requires it; without `weights`, memory is not initialised."""
        spec, configuration, mesh = self._spec, self._spec.configuration, self._mesh
        with torch.device("meta"):
            stage = ModelStage(
                spec.model,
                parts,
                self._tp,
                recompute=functools.partial(recompute_of, configuration),
                dtype=self._dtype,
                ep=_slice(mesh.ep),
                micro_batches=configuration.num_microbatches,
                cp=self._cp,
            )
        shard(stage, configuration, mesh)
        if weights:
            materialise(stage, seed=spec.training.seed, layers=spec.model.layers, device=mesh.device, pretrained=_pretrained(spec))
        else:
            stage.to_empty(device=mesh.device)
        return stage

    def boundary(self, part: int) -> Tensor:
        """Return tokens or images, the residual stream, or this rank's logits, on the meta device; no micro-batch has to run for this."""
        model, size = self._spec.model, self._spec.configuration.micro_batch
        if part == 0 and model.patch:
            return torch.empty(size, 3, side_of(model), side_of(model), device="meta")
        if part == 0:
            return torch.empty(size, model.seq_len, dtype=torch.long, device="meta")
        width = model.hidden if part < model.layers + 2 else len(self._tp.of(model.vocab))
        tokens = model.seq_len // self._cp.size
        if self._tp.sequence and part < model.layers + 2:
            tokens //= self._tp.size
        rows = (size,) if model.patch and part == model.layers + 2 else (size, tokens)
        return torch.empty(*rows, width, dtype=self._dtype, device="meta", requires_grad=True)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy; `output` has this rank's slice of the vocabulary.

        Under context parallelism, `output` is this rank's part of the sequences. The mean of the ranks' losses is that of whole sequences.
        """
        vocab, cp = self._spec.model.vocab, self._cp
        if cp.size == 1:
            return cross_entropy(output, targets, vocab, self._tp)
        mine = cp.of(targets.shape[1])
        return cross_entropy(output, targets[:, mine.start : mine.stop], vocab, self._tp, counted=(targets != IGNORED).sum() / cp.size)


def _pretrained(spec: TrialSpec) -> Pretrained | None:
    """Return the weights that training starts from; None for random ones."""
    if not spec.training.init_from:
        return None
    from oppa.training.model.huggingface import pretrained_of  # imports what other frameworks' environments lack

    return pretrained_of(spec.training, spec.model)


def _slice(axis: MeshAxis) -> Slice:
    return Slice(axis.index, axis.size, axis.group)
