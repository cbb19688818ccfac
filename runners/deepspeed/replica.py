"""What one rank holds of the model under DeepSpeed, ready to take optimizer steps.

The model is a list of parts, a block each: the first one embeds, the last one ends in logits. A PipelineModule builds those of its
stage; without a pipeline they follow each other on every rank.
"""

import functools

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from settings import require_runnable, settings
from torch import nn
from torch.profiler import record_function

from oppa.training.model import Stage
from oppa.training.optimizer import update_rule
from oppa.training.rules import require_supported
from oppa.training.tensor_parallel import Slice, cross_entropy
from oppa.training.weights import materialise

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_WHOLE = Slice()
"""A part is built whole: AutoTP is what cuts it."""


def build(spec, mesh):
    """This rank's part of the model; raises InputError for what DeepSpeed or this runner cannot do."""
    require_supported(spec.model, spec.configuration.tp)
    require_runnable(spec.configuration, spec.model.layers, spec.training.gradient_clipping)
    return Pipelined(spec, mesh) if spec.configuration.pp > 1 else Accumulated(spec, mesh)


class Part(Stage):
    """One block of the model with its weights, the torch runner's; the first one embeds, the last one projects."""

    def __init__(self, spec, index, device):
        layers, dtype = spec.model.layers, _DTYPES[spec.training.precision]
        parts = range(index + 1 if index else 0, index + 2 if index < layers - 1 else layers + 2)
        with torch.device("meta"):
            super().__init__(spec.model, parts, _WHOLE, recompute=spec.configuration.recompute, dtype=dtype)
        materialise(self, seed=spec.training.seed, layers=spec.model.layers, device=device)


class Accumulated:
    """Every rank holds all layers, whole or in shards, and runs micro-batches one after the other."""

    def __init__(self, spec, mesh):
        self._configuration, self._loss = spec.configuration, loss_for(spec)
        parts = (self._placed(Part(spec, index, mesh.device), spec) for index in range(spec.model.layers))
        self._engine = engine_for(nn.Sequential(*parts), spec)

    def step(self, batch):
        """One optimizer step on this replica's share of the global batch; its mean loss."""
        total = torch.zeros((), device=batch.tokens.device)
        for tokens, targets in micro_batches(batch, self._configuration):
            loss = self._loss(self._engine(tokens), targets)
            self._engine.backward(loss)
            self._engine.step()  # updates behind the last micro-batch alone
            total += loss.detach() / self._configuration.num_microbatches
        return total

    def _placed(self, part, spec):
        """A part where DeepSpeed takes it up, so that no device ever holds the whole model: in shards (ZeRO 3), on the host (AutoTP)."""
        if self._configuration.zero_stage == 3:
            deepspeed.zero.Init(module=part, config_dict_or_path=settings(spec.configuration, spec.training))
        elif self._configuration.tp > 1:
            part.cpu()
        return part


class Pipelined:
    """This rank holds the layers of a stage."""

    def __init__(self, spec, mesh):
        self._configuration, self._is_last = spec.configuration, mesh.pp.index == mesh.pp.size - 1
        parts = [LayerSpec(Part, spec, index, mesh.device) for index in range(spec.model.layers)]
        stage = PipelineModule(parts, num_stages=mesh.pp.size, loss_fn=loss_for(spec), partition_method="uniform")
        self._engine = engine_for(stage, spec)

    def step(self, batch):
        """One optimizer step; the mean loss over all replicas, where the last stage is."""
        loss = self._engine.train_batch(micro_batches(batch, self._configuration))
        return loss if self._is_last else None


def engine_for(module, spec):
    """DeepSpeed around a module, ready to train."""
    optimizer = functools.partial(_optimizer, training=spec.training)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings(spec.configuration, spec.training))
    # For bf16 without ZeRO, DeepSpeed makes the optimizer's state by a step on zero gradients, which would count as the first.
    for state in engine.basic_optimizer.state.values():
        if "step" in state:
            state["step"].zero_()
    return engine


def loss_for(spec):
    """Mean negative log likelihood of a micro-batch; AutoTP gathers the logits."""
    return lambda logits, targets: cross_entropy(logits, targets, spec.model.vocab, _WHOLE)


def micro_batches(batch, configuration):
    """A replica's share of the global batch, piece by piece."""
    size = configuration.micro_batch
    return zip(batch.tokens.split(size), batch.targets.split(size), strict=True)


def _optimizer(parameters, training):
    make, options = update_rule(training)
    optimizer = make(parameters, **options)
    optimizer.register_step_post_hook(_updated)
    return optimizer


def _updated(*_):
    """Mark the end of an update for `oppa.training.memory`: DeepSpeed drops gradients itself, without torch's `zero_grad`."""
    with record_function("Optimizer.zero_grad"):
        pass
