"""What one rank holds of the model, ready to take optimizer steps: its stages, their optimizer, and how micro-batches run."""

import torch
from torch import Tensor, nn

from oppa.problem.configuration import Configuration
from oppa.training.batches import Batch
from oppa.training.data_parallel import accumulating, average, optimizer_for, replicate, shard
from oppa.training.mesh import Mesh
from oppa.training.model import Stage
from oppa.training.pipeline_parallel import Loss, Pipeline, blocks_of, stages_of
from oppa.training.rules import require_schedulable, require_supported, splits_backward
from oppa.training.tensor_parallel import Slice, cross_entropy
from oppa.training.weights import materialise
from oppa.trials.wire import TrialSpec

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Replica:
    """This rank's part of the model and its optimizer; raises InputError for a model or a configuration beyond this core."""

    def __init__(self, spec: TrialSpec, mesh: Mesh) -> None:
        require_supported(spec.model, mesh.tp.size)
        require_schedulable(spec.configuration, spec.model.layers)
        self._configuration, self._mesh = spec.configuration, mesh
        dtype = _DTYPES[spec.training.precision]
        tp = Slice(mesh.tp.index, mesh.tp.size, mesh.tp.group)
        self._modules = [_stage(number, spec, mesh, tp, dtype) for number in stages_of(spec.configuration, mesh.pp.index)]
        self._optimizer = optimizer_for(self._modules, spec.configuration, mesh, spec.training.learning_rate)

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            # Divided here, so that gradients and losses of micro-batches simply add up to the mean.
            return cross_entropy(logits, targets, spec.model.vocab, tp) / spec.configuration.num_microbatches

        self._passes: Pipeline | _Accumulation
        if spec.configuration.pp > 1:
            self._passes = Pipeline(self._modules, spec, mesh, loss=loss, dtype=dtype)
        else:
            self._passes = _Accumulation(self._modules[0], spec.configuration, loss)

    def step(self, batch: Batch) -> Tensor | None:
        """One optimizer step on this replica's share of the global batch; its mean loss, where the last stage is."""
        loss = self._passes.forward_backward(batch)
        if splits_backward(self._configuration) and self._mesh.dp.group is not None and self._configuration.zero_stage < 2:
            parameters = (parameter for module in self._modules for parameter in module.parameters())
            average(parameters, self._mesh.dp, self._configuration.dp_bucket_mb * 2**20)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss


class _Accumulation:
    """Micro-batches one after the other on a rank that holds all layers."""

    def __init__(self, module: nn.Module, configuration: Configuration, loss: Loss) -> None:
        self._module, self._configuration, self._loss = module, configuration, loss

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate gradients of this replica's share of the batch; its mean loss."""
        total = torch.zeros((), device=batch.tokens.device)
        size = self._configuration.micro_batch
        for start in range(0, len(batch.tokens), size):
            tokens, targets = batch.tokens[start : start + size], batch.targets[start : start + size]
            with accumulating(self._module, self._configuration, last=start + size == len(batch.tokens)):
                loss = self._loss(self._module(tokens), targets)
                loss.backward()
            total += loss.detach()
        return total


def _stage(number: int, spec: TrialSpec, mesh: Mesh, tp: Slice, dtype: torch.dtype) -> nn.Module:
    blocks = blocks_of(number, spec.configuration, spec.model.layers)
    with torch.device("meta"):
        stage = Stage(spec.model, blocks, tp, recompute=spec.configuration.recompute, dtype=dtype)
    shard(stage, spec.configuration, mesh)
    materialise(stage, seed=spec.training.seed, layers=spec.model.layers, device=mesh.device)
    return replicate(stage, spec.configuration, mesh)
