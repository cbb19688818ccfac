"""Combine one rank's part of the model for optimizer steps: its stages, their optimizers and the schedule of micro-batches."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oppa.pipeline.from_configuration import stages_of
from oppa.pipeline.graph import BACKWARD, FORWARD, Schedule
from oppa.problem.configuration import Configuration
from oppa.problem.training import Over
from oppa.training.data.batches import Batch
from oppa.training.model.moe import Mixture
from oppa.training.parallel.clipping import Clipping
from oppa.training.parallel.data_parallel import accumulating, average_rest, optimizers_for, replicate
from oppa.training.parallel.extra_parameters import replicas_of
from oppa.training.parallel.family import Family, Transformer
from oppa.training.parallel.gradient_layout import layout_of_stages
from oppa.training.parallel.mesh import Mesh
from oppa.training.parallel.pipeline_parallel import Pipeline, numbers_of
from oppa.training.parallel.supported_layouts import require_buildable, require_runnable, splits_backward
from oppa.training.parallel.tied_embeddings import TiedEmbeddings
from oppa.training.parallel.user_stages import UserModule
from oppa.training.profiler.recorder import LOSS, PassRecorder
from oppa.training.statistics.gradient_statistics import GradientStatistics
from oppa.training.statistics.noise_scale import NoiseScale
from oppa.training.statistics.validation import Evaluation
from oppa.trials.trial_folder import TrialSpec

Answered = Callable[[Tensor, Tensor], None]
"""Receives the model's output for a micro-batch, and its targets."""


class Replica:
    """Holds this rank's part of the model and its optimizers."""

    def __init__(self, spec: TrialSpec, mesh: Mesh, *, weights: bool = True, local_batches: Sequence[int] = ()) -> None:
        """Build this rank's part.

        Args:
            spec: Model, configuration and training.
            mesh: Process groups of this rank.
            weights: Initialise the weights; otherwise the memory is undefined, and the caller fills it.
            local_batches: Samples of each worker; empty if all take the same number.

        Raises:
            InputError: if this core does not support the model or the configuration.
        """
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
        self._is_tied = spec.model.tied and not spec.model.entry_point  # the parts of a user's module share no weights
        self._tied = TiedEmbeddings(self._modules, mesh) if self._is_tied and spec.configuration.pp > 1 else None
        most = spec.training.gradient_clipping
        self._clipping = Clipping(self._modules, mesh, tied=self._is_tied, most=most) if most else None
        self._statistics: GradientStatistics | None = None
        self._answered: Answered | None = None
        self._recorder: PassRecorder | None = None
        self._schedule: Schedule | None = None
        self._family = family
        self._passes = self._passes_of(family)

    @property
    def stages(self) -> list[nn.Module]:
        """Return the stages of this rank, without their DDP wrappers."""
        return [stage.module if isinstance(stage, DistributedDataParallel) else stage for stage in self._modules]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers of this rank."""
        return self._optimizers

    def boundary(self, part: int) -> Tensor:
        """Return the input of a part of the model for a micro-batch, on the meta device."""
        return self._family.boundary(part)

    def rebatch(self, configuration: Configuration, local_batches: Sequence[int] = ()) -> None:
        """Change batch sizes and schedule from the next step on; the layout stays. All ranks call it after the same step.

        Args:
            configuration: Configuration of the same layout with the new sizes.
            local_batches: Samples of each worker; empty if all take the same number.

        Raises:
            InputError: if batches of these sizes cannot run.
        """
        assert same_layout(configuration, self._spec.configuration)
        require_runnable(self._spec.model, configuration, local_batches)
        self._local_batches, self._schedule = tuple(local_batches), None
        self._spec = spec = dataclasses.replace(self._spec, configuration=configuration)
        for module in (module for stage in self.stages for module in stage.modules()):
            if isinstance(module, Mixture):
                module.micro_batches = configuration.num_microbatches
        self._family = _family(spec, self._mesh)
        self._passes = self._passes_of(self._family)

    def listen(self, answered: Answered) -> None:
        """Call `answered` with the output and the targets of each micro-batch; this rank must hold all layers."""
        self._answered = answered
        self._passes = self._passes_of(self._family)

    def set_schedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next step on, until the configuration changes.

        If the configuration's schedule does not split the backward pass, the new one may split it only with a single replica.
        """
        assert splits_backward(self._spec.configuration) or not schedule.split or self._mesh.replicas.size == 1
        self._schedule = schedule
        self._passes = self._passes_of(self._family)

    def record(self, recorder: PassRecorder | None) -> None:
        """Report all passes and updates to `recorder` from now on; None ends the reports."""
        self._recorder = recorder
        self._passes = self._passes_of(self._family)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all parameters from the next update on."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    def watch(self, noise_scale: NoiseScale = NoiseScale(), over: Over = "micro-batches") -> GradientStatistics:  # noqa: B008 - frozen
        """Measure the gradients of every step from now on.

        Args:
            noise_scale: Smoothing and estimate to continue from.
            over: Gradients to compare with the mean gradient (`GradientStatistics`).
        """
        self.close()
        layout = layout_of_stages(self._modules, self._mesh, tied=self._is_tied)
        self._statistics = GradientStatistics(layout, noise_scale=noise_scale, over=over)
        return self._statistics

    def close(self) -> None:
        """Stop measuring gradients, and release the references of the statistics to the model."""
        if self._statistics is not None:
            self._statistics.close()
            self._statistics = None

    def step(self, batch: Batch) -> Tensor | None:
        """Take one optimizer step on this replica's share of the global batch; return its mean loss on the last stage, else None.

        If gradients are measured and not finite, no rank changes its weights.
        """
        loss = self.accumulate(batch)
        if self._statistics is not None:
            self._statistics.step(self._micro_batches())
        self.update(self._statistics is None or self._statistics.finite)
        return loss

    def accumulate(self, batch: Batch) -> Tensor | None:
        """Compute gradients, averaged over the replicas: the first half of a step. Return the mean loss on the last stage, else None."""
        loss = self._passes.forward_backward(batch)
        average_rest(self._modules, self._spec.configuration, self._mesh, self._spec.training)
        return loss

    def evaluate(self, batch: Batch, counting: int) -> Tensor:
        """Return losses, targets and hits of samples without training on them (`Evaluation.losses`)."""
        spec, numbers = self._spec, numbers_of(self._spec.configuration, self._mesh.pp.index)
        evaluation = Evaluation(
            stages=dict(zip(numbers, self.stages, strict=True)),
            parts=stages_of(spec.configuration, spec.model),
            family=self._family,
            configuration=spec.configuration,
            mesh=self._mesh,
        )
        return evaluation.losses(batch, counting)

    def measured(self) -> Tensor:
        """Return this rank's gradient measurements between the halves of a step (`GradientStatistics.own`)."""
        assert self._statistics is not None
        return self._statistics.own(self._micro_batches())

    def update(self, finite: bool = True) -> bool:
        """Run the second half of a step: clip gradients and update the weights, unless gradients are not finite.

        Returns:
            Whether the weights were updated, the same on all ranks; only clipping and `finite` check the gradients.
        """
        if finite and self._tied is not None:
            self._tied.sum_gradients()
        finite = finite and (self._clipping is None or self._clipping.clip())
        with self._recorder.update() if self._recorder else contextlib.nullcontext():
            for optimizer in self._optimizers if finite else ():
                optimizer.step()
            for optimizer in self._optimizers:
                optimizer.zero_grad()
        return finite

    def _passes_of(self, family: Family) -> "Pipeline | _Accumulation":
        """Return the object that runs the micro-batches of a step."""
        if self._spec.configuration.pp > 1:
            return Pipeline(self._modules, self._spec, self._mesh, family, passes=self._schedule, recorder=self._recorder)
        return _Accumulation(self._modules[0], self._spec.configuration, family, self._answered, self._recorder)

    def _micro_batches(self) -> list[float]:
        """Return the tokens of each micro-batch of this replica."""
        configuration, seq_len = self._spec.configuration, self._spec.model.seq_len
        if not self._local_batches:
            return [configuration.micro_batch * seq_len] * configuration.num_microbatches
        whole, rest = divmod(self._local_batches[self._mesh.dp.index], configuration.micro_batch)
        return [float(size * seq_len) for size in [configuration.micro_batch] * whole + [rest] * (rest > 0)]


def same_layout(one: Configuration, other: Configuration) -> bool:
    """Return whether two configurations differ only in batch sizes and schedules that leave all training state in its place."""
    alike = dataclasses.replace(one, global_batch=other.global_batch, micro_batch=other.micro_batch, schedule=other.schedule) == other
    averaged_alike = replicas_of(one) == 1 or splits_backward(one) == splits_backward(other)
    return alike and averaged_alike and numbers_of(one, 0) == numbers_of(other, 0)


def _family(spec: TrialSpec, mesh: Mesh) -> Family:
    return UserModule(spec, mesh) if spec.model.entry_point else Transformer(spec, mesh)


class _Accumulation:
    """Runs micro-batches in sequence on a rank that holds all layers."""

    def __init__(
        self, module: nn.Module, configuration: Configuration, family: Family, answered: Answered | None, recorder: PassRecorder | None
    ) -> None:
        self._module, self._configuration, self._family, self._answered = module, configuration, family, answered
        self._recorder = recorder

    def forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate gradients over this replica's share of the batch; return its mean loss."""
        total = torch.zeros((), device=batch.inputs.device)
        size = self._configuration.micro_batch
        for start in range(0, len(batch.inputs), size):
            inputs, targets = batch.inputs[start : start + size], batch.targets[start : start + size]
            with accumulating(self._module, self._configuration, last=start + size >= len(batch.inputs)):
                # Losses are divided, so that they and the gradients add up to the mean over samples, whatever the sizes of local batches.
                equal = self._configuration.global_batch / (self._configuration.dp * len(inputs))  # such micro-batches per replica
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
