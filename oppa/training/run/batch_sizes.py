"""Compute the micro-batch for another global batch in the same layout."""

import dataclasses

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.space_file import divisors
from oppa.training.parallel.supported_layouts import require_schedulable


def rebatched(configuration: Configuration, layers: int, *, global_batch: int, micro_batch: int | None = None) -> Configuration:
    """Return the same layout with another global batch.

    Args:
        configuration: The present configuration.
        layers: Layers of the model.
        global_batch: New global batch, in sequences.
        micro_batch: New micro-batch, in sequences; by default the largest one, up to the present size, that the layout can run.

    Raises:
        InputError: if the layout cannot run it. The hint names the nearest global batch that it can run.
    """
    wanted = dataclasses.replace(configuration, global_batch=global_batch)
    sizes = _sizes(wanted) if micro_batch is None else [micro_batch]
    fitting = [size for size in sizes if _runs(dataclasses.replace(wanted, micro_batch=size), layers)]
    if not fitting:
        given = f" in micro-batches of {micro_batch}" if micro_batch else ""
        hint = f"use {near}" if (near := _nearest(configuration, layers, global_batch, micro_batch)) else "use another layout"
        raise InputError(f"`{configuration.id}` cannot run `global_batch = {global_batch}`{given}", hint=hint)
    return dataclasses.replace(wanted, micro_batch=max(fitting))


def _sizes(configuration: Configuration) -> list[int]:
    """Return the micro-batches that divide a replica's share, up to the present one, which is known to fit in memory."""
    share, rest = divmod(configuration.global_batch, configuration.dp)
    return [] if rest else [size for size in divisors(share) if size <= configuration.micro_batch]


def _runs(configuration: Configuration, layers: int) -> bool:
    try:
        require_schedulable(configuration, layers)
    except InputError:
        return False
    return True


def _nearest(configuration: Configuration, layers: int, global_batch: int, micro_batch: int | None) -> int | None:
    """Return the nearest global batch that the layout can run; None if there is none up to twice the wanted one."""
    step = configuration.dp * (micro_batch or 1)
    others = sorted(range(step, 2 * global_batch + step + 1, step), key=lambda other: abs(other - global_batch))
    for other in others:
        wanted = dataclasses.replace(configuration, global_batch=other)
        if any(_runs(dataclasses.replace(wanted, micro_batch=size), layers) for size in ([micro_batch] if micro_batch else _sizes(wanted))):
            return other
    return None
