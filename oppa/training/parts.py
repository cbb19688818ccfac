"""Somebody's own module, by an entry point that says its blocks: `entry_point = "my_package.model:Mixer"` in `[model]` of a job.

The entry point is called with the job's `Model` and returns the module's parts (`Parts` below; a class that has these methods will do).
They are made one by one, because a rank makes only what it holds: the whole model never exists anywhere, and what a trial measures is
what its layout needs. Each part is made under a seed of its own, by its own initialisation, so that every layout begins with the same
weights. The job's other dimensions are for the cost model, but `layers` is the number of blocks; `examples/own_module.py` shows one.

Data and pipeline parallelism and every ZeRO stage work; tensor parallelism does not, because nobody knows how such a module is cut.
"""

import importlib
import sys
from typing import Any, Protocol

from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.model import Model


class Parts(Protocol):
    """A module in parts, each of which takes one tensor and returns one, whose first dimension is the sequences of a micro-batch.

    It may have a method `batch(step: int, sequences: range) -> (inputs, targets)` too: the sequences of these numbers in the global
    batch of a step, the same whenever it is asked. Without it the module is trained on what a model of these dimensions is trained on.
    """

    def embed(self) -> nn.Module:
        """What stands before the blocks."""
        ...

    def block(self, index: int) -> nn.Module:
        """One of the blocks."""
        ...

    def head(self) -> nn.Module:
        """What stands behind the blocks."""
        ...

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the sequences given."""
        ...


def parts_of(model: Model) -> Parts:
    """What the model's entry point returns.

    Raises:
        InputError: if there is none, or it lacks a part.
    """
    folder, module, name = model.entry_point.rsplit(":", 2)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        entry: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"`entry_point = {module}:{name}` is not there: {error}", hint=f"put it where `{folder}` is imported from"
        ) from error
    parts: Parts = entry(model)
    for method in ("embed", "block", "head", "loss"):
        if not hasattr(parts, method):
            raise InputError(f"`entry_point = {module}:{name}` has no `{method}`", hint="see oppa/training/own_module.py")
    return parts
