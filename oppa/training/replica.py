"""What one rank holds of the model, ready to take optimizer steps: its stages, their optimizers, and how micro-batches run."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oppa.pipeline.configured import stages_of
from oppa.pipeline.graph import BACKWARD, FORWARD, Order
from oppa.problem.configuration import Configuration
from oppa.problem.training import Over
from oppa.training.batches import Batch
from oppa.training.clipping import Clipping
from oppa.training.data_parallel import accumulating, average_rest, optimizers_for, replicate
from oppa.training.experts import Mixture
from oppa.training.family import Family, Transformer
from oppa.training.gradient_layout import layout_of_stages
from oppa.training.gradient_statistics import GradientStatistics
from oppa.training.mesh import Mesh
from oppa.training.noise_scale import NoiseScale
from oppa.training.own_module import OwnModule
from oppa.training.pipeline_parallel import Pipeline, numbers_of
from oppa.training.recorder import LOSS, Recorder
from oppa.training.rules import require_buildable, require_runnable, splits_backward
from oppa.training.tied import TiedWeights
from oppa.training.validation import losses
from oppa.trials.wire import TrialSpec

Answered = Callable[[Tensor, Tensor], None]
"""Hears what the model makes of a micro-batch, and its targets."""


class Replica:
    """This rank's part of the model and its optimizer; raises InputError for a model or a configuration beyond this core."""

    def __init__(self, spec: TrialSpec, mesh: Mesh, *, weights: bool = True, local_batches: Sequence[int] = ()) -> None:
        """`weights`: initial ones; else memory as it is found, to be filled. `local_batches`: of each worker, where they differ."""
        require_buildable(spec.model, spec.configuration)
        self._spec, self._mesh = spec, mesh
        require_runnable(spec.model, spec.configuration, local_batches)
        self._local_batches = tuple(local_batches)
        family = _family(spec, mesh)
        numbers = numbers_of(spec.configuration, mesh.pp.index)
        parts = stages_of(spec.configuration, spec.model)
        stages = [family.stage(parts[number], weights=weights) for number in numbers]
        self._modules = [replicate(stage, spec.configuration, mesh, spec.training) for stage in stages]
        self._optimizers = optimizers_for(self._modules, spec.configuration, mesh, spec.training)
        self._tied = TiedWeights(self._modules, mesh) if spec.model.tied and spec.configuration.pp > 1 else None
        most, tied = spec.training.gradient_clipping, spec.model.tied
        self._clipping = Clipping(self._modules, mesh, tied=tied, most=most) if most else None
        self._statistics: GradientStatistics | None = None
        self._answered: Answered | None = None
        self._recorder: Recorder | None = None
        self._order: Order | None = None
        self._family = family
        self._passes = self._passes_of(family)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages of this rank, without what averages their gradients."""
        return [stage.module if isinstance(stage, DistributedDataParallel) else stage for stage in self._modules]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """What updates them."""
        return self._optimizers

    def boundary(self, part: int) -> Tensor:
        """What a part of the model gets of a micro-batch, on the meta device."""
        return self._family.boundary(part)

    def rebatch(self, configuration: Configuration, local_batches: Sequence[int] = ()) -> None:
        """Take batches of other sizes from the next step on; the layout stays, and all ranks do so behind the same step.

        `local_batches`: of each worker, where they differ.

        Raises:
            InputError: if batches of these sizes cannot run.
        """
        assert same_layout(configuration, self._spec.configuration)
        require_runnable(self._spec.model, configuration, local_batches)
        self._local_batches = tuple(local_batches)
        if self._order is not None and self._order.shape.micro_batches != configuration.num_microbatches:
            self._order = None
        self._spec = spec = dataclasses.replace(self._spec, configuration=configuration)
        for module in (module for stage in self.stages for module in stage.modules()):
            if isinstance(module, Mixture):
                module.micro_batches = configuration.num_microbatches
        self._family = _family(spec, self._mesh)
        self._passes = self._passes_of(self._family)

    def listen(self, answered: Answered) -> None:
        """Call this with the model's outputs and the targets of each micro-batch, on a rank that holds all layers."""
        self._answered = answered
        self._passes = self._passes_of(self._family)

    def reorder(self, order: Order) -> None:
        """Go through the pipeline in this order from the next step on, as long as there are as many micro-batches.

        A replica whose schedule splits the backward pass can go in any order of its stages; else one that does not split it either.
        """
        assert splits_backward(self._spec.configuration) or not order.split or self._mesh.dp.size == 1
        self._order = order
        self._passes = self._passes_of(self._family)

    def record(self, recorder: Recorder | None) -> None:
        """Tell it of all passes and updates from now on; nobody, if None."""
        self._recorder = recorder
        self._passes = self._passes_of(self._family)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Of all parameters, from the next step on."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    def watch(self, noise_scale: NoiseScale = NoiseScale(), over: Over = "micro-batches") -> GradientStatistics:  # noqa: B008 - frozen
        """Measure the gradients of every step from now on; `noise_scale` is what to go on from."""
        self.close()
        layout = layout_of_stages(self._modules, self._mesh, tied=self._spec.model.tied)
        self._statistics = GradientStatistics(layout, noise_scale=noise_scale, over=over)
        return self._statistics

    def close(self) -> None:
        """Measure no gradients any more; what has measured them lets go of the model."""
        if self._statistics is not None:
            self._statistics.close()
            self._statistics = None

    def step(self, batch: Batch) -> Tensor | None:
        """One optimizer step on this replica's share of the global batch; its mean loss, where the last stage is.

        Where gradients are watched and are not finite, no rank changes its weights.
        """
        loss = self.accumulate(batch)
        if self._statistics is not None:
            self._statistics.step(self._micro_batches())
        self.update(self._statistics is None or self._statistics.finite)
        return loss

    def accumulate(self, batch: Batch) -> Tensor | None:
        """The first half of a step: gradients, averaged over the replicas; the mean loss, where the last stage is."""
        loss = self._passes.forward_backward(batch)
        average_rest(self._modules, self._spec.configuration, self._mesh, self._spec.training)
        return loss

    def evaluate(self, batch: Batch, counting: int) -> Tensor:
        """Of samples that nothing is learned from: losses, targets and hits (`validation.losses`)."""
        spec, numbers = self._spec, numbers_of(self._spec.configuration, self._mesh.pp.index)
        stages = dict(zip(numbers, self.stages, strict=True))
        return losses(stages, self._family, spec.configuration, self._mesh, stages_of(spec.configuration, spec.model), batch, counting)

    def measured(self) -> Tensor:
        """In between: what this rank has to tell of the gradients that are watched (`GradientStatistics.own`)."""
        assert self._statistics is not None
        return self._statistics.own(self._micro_batches())

    def update(self, finite: bool = True) -> None:
        """The second half: new weights, unless gradients are not finite."""
        if finite and self._tied is not None:
            self._tied.sum_gradients()
        finite = finite and (self._clipping is None or self._clipping.clip())
        with self._recorder.update() if self._recorder else contextlib.nullcontext():
            for optimizer in self._optimizers if finite else ():
                optimizer.step()
            for optimizer in self._optimizers:
                optimizer.zero_grad()

    def _passes_of(self, family: Family) -> "Pipeline | _Accumulation":
        """What runs the micro-batches of a step."""
        if self._spec.configuration.pp > 1:
            return Pipeline(self._modules, self._spec, self._mesh, family, passes=self._order, recorder=self._recorder)
        return _Accumulation(self._modules[0], self._spec.configuration, family, self._answered, self._recorder)

    def _micro_batches(self) -> list[float]:
        """Tokens of each of this replica's."""
        configuration, seq_len = self._spec.configuration, self._spec.model.seq_len
        if not self._local_batches:
            return [configuration.micro_batch * seq_len] * configuration.num_microbatches
        whole, rest = divmod(self._local_batches[self._mesh.dp.index], configuration.micro_batch)
        return [float(size * seq_len) for size in [configuration.micro_batch] * whole + [rest] * (rest > 0)]


def same_layout(one: Configuration, other: Configuration) -> bool:
    """Whether one becomes the other while all state stays where it is: they differ in batch sizes, and in the order of passes."""
    alike = dataclasses.replace(one, global_batch=other.global_batch, micro_batch=other.micro_batch, schedule=other.schedule) == other
    averaged_alike = one.dp == 1 or splits_backward(one) == splits_backward(other)
    return alike and averaged_alike and numbers_of(one, 0) == numbers_of(other, 0)


def _family(spec: TrialSpec, mesh: Mesh) -> Family:
    return OwnModule(spec, mesh) if spec.model.entry_point else Transformer(spec, mesh)


class _Accumulation:
    """Micro-batches one after the other on a rank that holds all layers."""

    def __init__(
        self, module: nn.Module, configuration: Configuration, family: Family, answered: Answered | None, recorder: Recorder | None
    ) -> None:
        self._module, self._configuration, self._family, self._answered = module, configuration, family, answered
        self._recorder = recorder

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate gradients of this replica's share of the batch; its mean loss."""
        total = torch.zeros((), device=batch.inputs.device)
        size = self._configuration.micro_batch
        for start in range(0, len(batch.inputs), size):
            inputs, targets = batch.inputs[start : start + size], batch.targets[start : start + size]
            with accumulating(self._module, self._configuration, last=start + size >= len(batch.inputs)):
                # Divided, so that gradients and losses of micro-batches add up to the mean over samples, whatever a replica has of them.
                equal = self._configuration.global_batch / (self._configuration.dp * len(inputs))  # so many such micro-batches on each
                number = start // size
                with self._recorded(FORWARD, number):
                    output = self._module(inputs)
                with self._recorded(LOSS, number):
                    loss = self._family.loss(output, targets) / equal
                with self._recorded(BACKWARD, number):
                    loss.backward()
            total += loss.detach()
            if self._answered is not None:
                self._answered(output.detach(), targets)
        return total

    def _recorded(self, kind: int, micro_batch: int) -> contextlib.AbstractContextManager[None]:
        return self._recorder.node(kind, 0, micro_batch) if self._recorder else contextlib.nullcontext()
