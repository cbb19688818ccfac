"""What one rank holds of the model, ready to take optimizer steps: its stages, their optimizers, and how micro-batches run."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oppa.problem.configuration import Configuration
from oppa.training.batches import Batch
from oppa.training.data_parallel import accumulating, average_rest, optimizers_for, replicate
from oppa.training.family import Family, Transformer
from oppa.training.gradient_layout import layout_of_stages
from oppa.training.gradient_statistics import GradientStatistics
from oppa.training.mesh import Mesh
from oppa.training.noise_scale import NoiseScale
from oppa.training.own_module import OwnModule
from oppa.training.pipeline_parallel import Pipeline, blocks_of, stages_of
from oppa.training.rules import require_buildable, require_schedulable
from oppa.training.tied import TiedWeights
from oppa.trials.wire import TrialSpec


class Replica:
    """This rank's part of the model and its optimizer; raises InputError for a model or a configuration beyond this core."""

    def __init__(self, spec: TrialSpec, mesh: Mesh) -> None:
        require_buildable(spec.model, spec.configuration)
        require_schedulable(spec.configuration, spec.model.layers)
        self._configuration, self._mesh = spec.configuration, mesh
        family: Family = OwnModule(spec, mesh) if spec.model.entry_point else Transformer(spec, mesh)
        numbers = stages_of(spec.configuration, mesh.pp.index)
        stages = [family.stage(blocks_of(number, spec.configuration, spec.model.layers)) for number in numbers]
        self._modules = [replicate(stage, spec.configuration, mesh) for stage in stages]
        self._optimizers = optimizers_for(self._modules, spec.configuration, mesh, spec.training.learning_rate)
        self._tied = TiedWeights(self._modules, mesh) if spec.model.tied and spec.configuration.pp > 1 else None
        self._is_tied, self._tokens = spec.model.tied, spec.configuration.micro_batch * spec.model.seq_len
        self._statistics: GradientStatistics | None = None
        self._passes: Pipeline | _Accumulation
        if spec.configuration.pp > 1:
            self._passes = Pipeline(self._modules, spec, mesh, family)
        else:
            self._passes = _Accumulation(self._modules[0], spec.configuration, family)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages of this rank, without what averages their gradients."""
        return [stage.module if isinstance(stage, DistributedDataParallel) else stage for stage in self._modules]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """What updates them."""
        return self._optimizers

    def watch(self, noise_scale: NoiseScale = NoiseScale()) -> GradientStatistics:  # noqa: B008 - frozen
        """Measure the gradients of every step from now on; `noise_scale` is what to go on from."""
        if self._statistics is not None:
            self._statistics.close()
        self._statistics = GradientStatistics(layout_of_stages(self._modules, self._mesh, tied=self._is_tied), noise_scale=noise_scale)
        return self._statistics

    def step(self, batch: Batch) -> Tensor | None:
        """One optimizer step on this replica's share of the global batch; its mean loss, where the last stage is."""
        loss = self._passes.forward_backward(batch)
        average_rest(self._modules, self._configuration, self._mesh)
        if self._statistics is not None:
            self._statistics.step([self._tokens] * self._configuration.num_microbatches)
        if self._tied is not None:
            self._tied.sum_gradients()
        for optimizer in self._optimizers:
            optimizer.step()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        return loss


class _Accumulation:
    """Micro-batches one after the other on a rank that holds all layers."""

    def __init__(self, module: nn.Module, configuration: Configuration, family: Family) -> None:
        self._module, self._configuration, self._family = module, configuration, family

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate gradients of this replica's share of the batch; its mean loss."""
        total = torch.zeros((), device=batch.inputs.device)
        size = self._configuration.micro_batch
        for start in range(0, len(batch.inputs), size):
            inputs, targets = batch.inputs[start : start + size], batch.targets[start : start + size]
            with accumulating(self._module, self._configuration, last=start + size == len(batch.inputs)):
                # Divided, so that gradients and losses of micro-batches simply add up to the mean.
                loss = self._family.loss(self._module(inputs), targets) / self._configuration.num_microbatches
                loss.backward()
            total += loss.detach()
        return total
