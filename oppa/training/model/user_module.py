"""Load a user's module in parts from an entry point: `entry_point = "my_package.model:Mixer"` in `[model]` of a job.

The entry point is called with the job's `Model` and returns the parts (`Parts` below; any class with these methods works). Parts are
created one by one, because a rank creates only those that it holds. The whole model exists nowhere, so that a trial measures what its
layout needs. Each part is initialised by its own code under its own seed, so that every layout starts with the same weights. `layers` is
the number of blocks; the cost model traces the parts (`oppa.training.tracing`), and falls back to the job's other dimensions.
`examples/own_module.py` is an example.

Data parallelism, pipeline parallelism and every ZeRO stage work. Tensor parallelism does not, because it is unknown how to split such a
module.
"""

import importlib
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.model import Model


class Parts(Protocol):
    """Divides a module into parts. Each maps one tensor to one tensor, whose first dimension is the sequences of a micro-batch.

    An optional method `batch(step: int, sequences: range) -> (inputs, targets)` returns these sequences of the global batch of a step, and
    the same ones at each call. Without it, the module is trained on the data of a built-in model with these dimensions.
    """

    def embed(self) -> nn.Module:
        """Create the part before the blocks."""

    def block(self, index: int) -> nn.Module:
        """Create one of the blocks."""

    def head(self) -> nn.Module:
        """Create the part after the blocks."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the given sequences."""


def parts_of(model: Model) -> Parts:
    """Call the model's entry point and return its parts.

    Raises:
        InputError: if the entry point cannot be imported, or lacks a method.
    """
    folder, module, name = model.entry_point.rsplit(":", 2)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        entry: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"`entry_point = {module}:{name}` cannot be imported: {error}", hint=f"make it importable from `{folder}`"
        ) from error
    parts: Parts = entry(model)
    for method in ("embed", "block", "head", "loss"):
        if not hasattr(parts, method):
            raise InputError(
                f"`entry_point = {module}:{name}` has no `{method}`", hint="define it, as oppa/training/parallel/user_stages.py shows"
            )
    return parts


def require_restorable(stages: Iterable[nn.Module]) -> None:
    """Raise InputError if a module in training mode keeps running statistics, as batch norm does: they are no part of a checkpoint."""
    for name, module in (named for stage in stages for named in stage.named_modules()):
        if module.training and getattr(module, "track_running_stats", False):
            message = f"`{name}` of the user module is {type(module).__name__}, whose running statistics no checkpoint has"
            raise InputError(message, hint="use a norm without them, such as LayerNorm, or set `track_running_stats = False`")
