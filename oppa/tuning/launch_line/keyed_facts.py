"""Read what keys state of the model and of what trains, for predictions."""

import math
import re
from collections.abc import Iterator
from pathlib import PurePath

from oppa.problem.configuration import Value
from oppa.tuning.launch_line.fine_tuning import LIKE_ADAMW, OF_EIGHT_BITS, WIDE_MOMENTS, WIDE_STATES, other_memory, overestimate
from oppa.tuning.launch_line.keyed_values import KeyedValues
from oppa.tuning.launch_line.local_model import local_model
from oppa.tuning.launch_line.meaning import StatedFact
from oppa.tuning.launch_line.sources import LineSources

_PAGED = ("adamw32bit", "pagedadamw", "pagedadamw32bit")
_ADAMW = (
    "adam",
    "adamw",
    "cpu_adam",
    "fused_adam",
    "distributed_fused_adam",
    "mcore_distributed_optim",
    "decoupled_adamw",
    *_PAGED,
    *LIKE_ADAMW,
)
"""Optimizers with two moments in 32 bits, in lower case."""


def model_of(values: KeyedValues, sources: LineSources) -> tuple[dict[str, Value], str, list[str]]:
    """Return `[model]`, its origin, and what would state it otherwise; nothing if a dimension other than the vocabulary is not known."""
    program, length = values.program, values.number(values.program.seq_len) if values.program.seq_len else None
    if program.config and (named := values.text(program.config)):
        return local_model(sources, named, length)
    found: dict[str, Value] = {}
    for name, keys in program.model.items():
        stated = [values.stated(key)[0] for key in ([keys] if isinstance(keys, str) else keys)]
        numbers = [each for each in stated if isinstance(each, int | float)]
        if len(numbers) == len(stated):
            found[name] = numbers[0] if isinstance(keys, str) else int(math.prod(numbers))
    experts = _experts(values)
    if length is None or experts is None or not {"layers", "hidden", "heads", "ffn"} <= found.keys():
        return {}, "", []
    for name, meanings in program.model_texts.items():
        if (meant := meanings.get(values.text(meanings["key"]))) is not None:
            found[name] = meant
    known = {"kv_heads": found["heads"], **program.model_values, **found, **experts, "seq_len": length}
    return known, values.stated(program.seq_len)[1], []


def _experts(values: KeyedValues) -> dict[str, Value] | None:
    """Return the dimensions of a mixture of experts; an empty table for a dense model, and None if they are not all known."""
    shown = [table for table in values.program.experts if values.stated(table["key"])[0]]
    for table in shown:
        if all(values.stated(key)[0] == value for key, value in table.get("where", {}).items()):
            numbers: dict[str, Value] = {name: number for name, key in table["model"].items() if (number := values.number(key))}
            return numbers if numbers.keys() == table["model"].keys() else None
    return None if shown else {}


def training_of(values: KeyedValues, sources: LineSources) -> tuple[StatedFact, ...]:
    """Return the keys of `[training]` that the program's name, the line or its file states."""
    program, found = values.program, list[StatedFact]()
    texts = ((key, text, weights) for key, formats in program.quantized.items() for text, weights in formats.items())
    quantized, weights = next(((key, weights) for key, text, weights in texts if re.fullmatch(text, values.text(key))), ("", ""))
    adapter = str(program.adapter.get("key", ""))
    is_adapted = adapter and values.text(adapter).lower() not in ("", *program.adapter.get("full", ()))
    if is_adapted or quantized or program.trains_adapters(sources.line):
        origin = values.stated(adapter if is_adapted else quantized)[1] or "line"
        found.append(StatedFact(name="trained", value="lora", origin=origin))
    if quantized:
        found.append(StatedFact(name="weights", value=weights, origin=values.stated(quantized)[1]))
    return tuple(found)


def unpredicted(values: KeyedValues) -> Iterator[str]:
    """Yield a note if the optimizer needs another amount of memory than predicted."""
    optimizer = _optimizer(values)
    if optimizer and optimizer not in _ADAMW and not OF_EIGHT_BITS.fullmatch(optimizer):
        yield other_memory(values.text(values.program.optimizer))


def overestimated(values: KeyedValues, sources: LineSources) -> Iterator[str]:
    """Yield a note on each key that needs less memory than predicted. Adapters have next to no states."""
    program = values.program
    has_states = not training_of(values, sources)
    if has_states and values.text(key := program.precision.get("key", "")) in program.precision.get("pure", ()):
        yield overestimate(f"{key} = {values.text(key)}", WIDE_STATES)
    if has_states and OF_EIGHT_BITS.fullmatch(_optimizer(values)):
        yield overestimate(values.text(program.optimizer), WIDE_MOMENTS)
    for key, assumed in program.lighter.items():
        if values.stated(key)[0] is True:
            yield overestimate(f"{key} = true", assumed)


def _optimizer(values: KeyedValues) -> str:
    """Return the name of the optimizer in lower case, without its module."""
    return PurePath(values.text(values.program.optimizer).replace(".", "/")).name.lower()
