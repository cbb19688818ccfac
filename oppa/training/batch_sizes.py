"""The micro-batch calculator: what another global batch means to a layout that stays."""

import dataclasses

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.space_file import divisors
from oppa.training.rules import require_schedulable


def rebatched(configuration: Configuration, layers: int, *, global_batch: int, micro_batch: int | None = None) -> Configuration:
    """The same layout with another global batch, in sequences, and the largest micro-batch up to the present one, unless it is given.

    Raises:
        InputError: if the layout cannot run it; names the nearest global batch that it can.
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
    """Micro-batches that make up a replica's share, none larger than the present one, which fits into memory."""
    share, rest = divmod(configuration.global_batch, configuration.dp)
    return [] if rest else [size for size in divisors(share) if size <= configuration.micro_batch]


def _runs(configuration: Configuration, layers: int) -> bool:
    try:
        require_schedulable(configuration, layers)
    except InputError:
        return False
    return True


def _nearest(configuration: Configuration, layers: int, global_batch: int, micro_batch: int | None) -> int | None:
    """The global batch closest to the wanted one that the layout can run; None if there is none up to twice as large."""
    step = configuration.dp * (micro_batch or 1)
    others = sorted(range(step, 2 * global_batch + step + 1, step), key=lambda other: abs(other - global_batch))
    for other in others:
        wanted = dataclasses.replace(configuration, global_batch=other)
        if any(_runs(dataclasses.replace(wanted, micro_batch=size), layers) for size in ([micro_batch] if micro_batch else _sizes(wanted))):
            return other
    return None
