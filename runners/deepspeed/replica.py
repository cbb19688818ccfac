"""Build one rank's part of the model under DeepSpeed, ready to take optimizer steps.

The model is a list of parts with one block each. The first part also embeds, and the last one also projects to logits. A PipelineModule
builds the parts of its stage. Without a pipeline, every rank runs all parts in order.
"""

import functools

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from settings import require_runnable, settings
from torch import nn
from torch.profiler import record_function

from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import Slice, cross_entropy
from oppa.training.model.weights import materialise
from oppa.training.parallel.optimizer import groups_of, update_rule
from oppa.training.parallel.supported_layouts import require_random_start, require_supported

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_WHOLE = Slice()
"""Slice of a part that is built whole, because AutoTP splits it."""


def build(spec, mesh):
    """Return this rank's part of the model; raises InputError for a job that DeepSpeed or this runner does not support."""
    require_supported(spec.model, spec.configuration.tp)
    require_random_start(spec.training)
    require_runnable(spec.configuration, spec.model.layers, spec.training.gradient_clipping, spec.training.precision)
    return Pipelined(spec, mesh) if spec.configuration.pp > 1 else Accumulated(spec, mesh)


class LayerPart(ModelStage):
    """Wraps one block of the model with the torch runner's weights; the first one also embeds, the last one also projects to logits."""

    def __init__(self, spec, index, device):
        layers, dtype = spec.model.layers, _DTYPES[spec.training.precision]
        parts = range(index + 1 if index else 0, index + 2 if index < layers - 1 else layers + 2)
        with torch.device("meta"):
            super().__init__(spec.model, parts, _WHOLE, recompute=lambda _: spec.configuration.recompute, dtype=dtype)
        materialise(self, seed=spec.training.seed, layers=spec.model.layers, device=device)


class Accumulated:
    """Trains a replica without a pipeline: every rank holds all layers, whole or in shards, and runs micro-batches one after the other."""

    def __init__(self, spec, mesh):
        self._configuration, self._loss = spec.configuration, loss_for(spec)
        parts = (self._placed(LayerPart(spec, index, mesh.device), spec) for index in range(spec.model.layers))
        self._engine = engine_for(nn.Sequential(*parts), spec)

    def step(self, batch):
        """Take one optimizer step on this replica's share of the global batch, and return its mean loss."""
        total = torch.zeros((), device=batch.tokens.device)
        for tokens, targets in micro_batches(batch, self._configuration):
            loss = self._loss(self._engine(tokens), targets)
            self._engine.backward(loss)
            self._engine.step()  # updates the weights after the last micro-batch only
            total += loss.detach() / self._configuration.num_microbatches
        return total

    def _placed(self, part, spec):
        """Return a part in the place that DeepSpeed expects: in shards for ZeRO 3, on the host for AutoTP.

        No device then ever holds the whole model.
        """
        if self._configuration.zero_stage == 3:
            deepspeed.zero.Init(module=part, config_dict_or_path=settings(spec.configuration, spec.training))
        elif self._configuration.tp > 1:
            part.cpu()
        return part


class Pipelined:
    """Trains a replica with a pipeline: this rank holds the layers of one stage."""

    def __init__(self, spec, mesh):
        self._configuration, self._is_last = spec.configuration, mesh.pp.index == mesh.pp.size - 1
        parts = [LayerSpec(LayerPart, spec, index, mesh.device) for index in range(spec.model.layers)]
        stage = PipelineModule(parts, num_stages=mesh.pp.size, loss_fn=loss_for(spec), partition_method="uniform")
        self._engine = engine_for(stage, spec)

    def step(self, batch):
        """Take one optimizer step; return the mean loss over all replicas on the last stage, None on other stages."""
        loss = self._engine.train_batch(micro_batches(batch, self._configuration))
        return loss if self._is_last else None


def engine_for(module, spec):
    """Return DeepSpeed's engine around a module, ready to train."""
    optimizer = functools.partial(_optimizer, training=spec.training)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings(spec.configuration, spec.training))
    # DeepSpeed makes the optimizer's state, for bf16 without ZeRO, by a step on zero gradients, which would count as the first.
    for state in engine.basic_optimizer.state.values():
        if "step" in state:
            state["step"].zero_()
    return engine


def loss_for(spec):
    """Return the loss function of logits and targets: the mean negative log-likelihood of a micro-batch. AutoTP gathers the logits."""
    return lambda logits, targets: cross_entropy(logits, targets, spec.model.vocab, _WHOLE)


def micro_batches(batch, configuration):
    """Return an iterator over the micro-batches of a replica's share of the global batch, as pairs of tokens and targets."""
    size = configuration.micro_batch
    return zip(batch.tokens.split(size), batch.targets.split(size), strict=True)


def _optimizer(parameters, training):
    make, options = update_rule(training)
    optimizer = make(groups_of(parameters, training, shape_of=_whole_shape), **options)
    optimizer.register_step_post_hook(_updated)
    return optimizer


def _whole_shape(parameter):
    """Return the shape of a parameter, of which ZeRO 3 holds a flat shard."""
    return getattr(parameter, "ds_shape", parameter.shape)


def _updated(*_):
    """Mark the end of an update for `oppa.training.profiler.memory`: DeepSpeed drops gradients itself, without torch's `zero_grad`."""
    with record_function("Optimizer.zero_grad"):
        pass
