"""Trace a user's module, part by part, as the trainer runs it: under autocast, each part on the output of the one before.

Layers of the same structure run once: those whose modules, weights and input have the same names and shapes.
"""

import dataclasses
import math
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.model import Model
from oppa.problem.trace import ModelTrace
from oppa.training.data.images import side_of
from oppa.training.model.stage import DTYPES
from oppa.training.model.user_module import Parts, parts_of
from oppa.training.torch_internals import FakeTensorMode
from oppa.training.tracing.passes import PartWeights, Pass, combine
from oppa.training.tracing.recorder import Recording, held_tensors, recording


def trace_user_module(model: Model, precision: str) -> ModelTrace:
    """Trace the module of a job's entry point; raises what its code raises, and InputError if it cannot be loaded."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = _Module(model, precision)
        one, two = module.run(1), module.run(2)
        shorter = _shorter(model, precision)
    return combine(model.entry_point.partition(":")[2], module.weights, one, two, shorter)


def _shorter(model: Model, precision: str) -> Pass | None:
    """Return a pass of half the length; None if the module needs its own length."""
    half = (math.isqrt(model.seq_len - 1) // 2) ** 2 + 1 if model.patch else model.seq_len // 2
    if half < 1:
        return None
    try:
        return _Module(dataclasses.replace(model, seq_len=half), precision).run(1)
    except Exception:  # noqa: BLE001 - the module may raise anything, and one length is enough for its memory
        return None


class _Module:
    """Runs all parts of a user's module on fake tensors."""

    def __init__(self, model: Model, precision: str) -> None:
        self._model, self._dtype = model, DTYPES[precision]
        self._parts = parts_of(model)
        self._embedding, self._head = self._parts.embed(), self._parts.head()
        self._layers = [self._parts.block(index) for index in range(model.layers)]

    @property
    def weights(self) -> PartWeights:
        """Return the parameters of the parts."""
        layers = [_count(layer) for layer in self._layers]
        return PartWeights(layers=layers, embedding=_count(self._embedding), head=_count(self._head), tied=False)

    def run(self, sequences: int) -> Pass:
        """Return what a forward pass on some sequences keeps and computes."""
        inputs, targets = _batch(self._parts, self._model, sequences)
        runs: list[Recording] = []
        known: dict[Hashable, tuple[Recording, Tensor]] = {}
        with torch.autocast("cpu", self._dtype, enabled=self._dtype != torch.float32):
            x = self._embedding(inputs)
            for layer in self._layers:
                signature = _signature(layer, x)
                if signature not in known:
                    known[signature] = _recorded(layer, x)
                run, x = known[signature]
                runs.append(run)
            with recording(held_tensors(self._head)) as head:
                output = self._head(x)
                self._parts.loss(output, targets)
        return Pass(
            sequences=sequences,
            tokens=self._model.seq_len,
            layers_kept_bytes=sum(run.kept_bytes for run in runs) / len(runs),
            layers_flops=sum(run.flops for run in runs) / len(runs),
            head_kept_bytes=head.kept_bytes,
        )


def _recorded(layer: nn.Module, x: Tensor) -> tuple[Recording, Tensor]:
    """Run a layer, and return what it kept and its output as the input of another layer."""
    x = x.detach().requires_grad_(x.is_floating_point())
    with recording(held_tensors(layer)) as run:
        out: Tensor = layer(x)
    return run, out


def _batch(parts: Parts, model: Model, sequences: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the shapes that the trainer has; those of the module's own data if it has any."""
    if hasattr(parts, "batch"):
        inputs, targets = parts.batch(0, range(sequences))
        if len(inputs) != sequences:
            raise InputError(f"`batch` returns {len(inputs)} sequences for {sequences}", hint="return as many as it is asked for")
        return inputs, targets
    if model.patch:
        return torch.zeros(sequences, 3, side_of(model), side_of(model)), torch.zeros(sequences, dtype=torch.long)
    tokens = torch.zeros(sequences, model.seq_len, dtype=torch.long)
    return tokens, tokens


def _signature(layer: nn.Module, x: Tensor) -> Hashable:
    weights = tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in layer.named_parameters())
    return repr(layer), weights, x.shape, x.dtype


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
