"""Read what arguments of the Trainer state of memory besides the layout: adapters, quantised weights, and the optimizer."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from oppa.tuning.launch_line.meaning import StatedFact

if TYPE_CHECKING:
    from oppa.tuning.launch_line.trainer_arguments import TrainerArguments

_ADAPTERS = ("use_peft", "lora_enable", "use_lora", "low_rank_training", "use_llm_lora")
_QUANTIZED: Mapping[str, str] = {
    **dict.fromkeys(("load_in_4bit", "q_lora"), "4-bit"),
    "load_in_8bit": "8-bit",
    **dict.fromkeys(("quantization_bit", "quant_bits"), ""),
}
"""Arguments that quantise the frozen weights, with their format; the value of the others is the number of bits."""
_OFF = ("", "false", "no", "none", "0")
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "adamw_8bit", "paged_adamw_8bit")
"""Optimizers of Transformers that its search space has, and predictions distinguish."""
LIKE_ADAMW = ("adamw_torch_fused", "adamw_torch", "adamw_hf", "adamw_apex_fused", "paged_adamw", "paged_adamw_32bit")
"""Optimizers with two moments in 32 bits."""

OF_EIGHT_BITS = re.compile(r".*8_?bit")
"""Optimizers with moments in 8 bits, in lower case."""
WIDE_STATES, WIDE_MOMENTS = "weights and moments in 32 bits", "AdamW with moments in 32 bits"


def overestimate(stated: str, assumed: str) -> str:
    """Return the note on an argument that needs less memory than predictions take for it."""
    return f"predictions take {assumed} for `{stated}`, so less memory is needed than predicted"


def other_memory(optimizer: str) -> str:
    """Return the note on an optimizer whose memory is not known."""
    return f"predictions take {WIDE_MOMENTS} for `{optimizer}`, so its memory may differ"


def fine_tuning(arguments: "TrainerArguments") -> tuple[StatedFact, ...]:
    """Return the keys of `[training]` that arguments state: which weights train, and the format of the others."""
    tuner = arguments.program.tuner
    adapter = next((name for name in _ADAPTERS if _is_on(arguments, name)), "")
    if tuner and arguments.text(tuner) not in ("full", "freeze"):
        adapter = tuner
    quantized = next((name for name in _QUANTIZED if _is_on(arguments, name)), "")
    found = []
    if adapter or quantized:
        found.append(StatedFact(name="trained", value="lora", origin=_origin(arguments, adapter or quantized)))
    if weights := _QUANTIZED.get(quantized, "") or {"4": "4-bit", "8": "8-bit"}.get(arguments.text(quantized), ""):
        found.append(StatedFact(name="weights", value=weights, origin=_origin(arguments, quantized)))
    return tuple(found)


def unpredicted(arguments: "TrainerArguments", *, optimizers: Collection[str] = ()) -> Iterator[str]:
    """Yield a note if the optimizer needs another amount of memory than predicted.

    Args:
        optimizers: Those that predictions distinguish.
    """
    optimizer = arguments.text("optim")
    if optimizer and optimizer not in (*optimizers, *LIKE_ADAMW) and not OF_EIGHT_BITS.fullmatch(optimizer):
        yield other_memory(optimizer)


def overestimated(arguments: "TrainerArguments", *, optimizers: Collection[str] = ()) -> Iterator[str]:
    """Yield a note on each argument that needs less memory than predicted. Adapters have next to no states.

    Args:
        optimizers: Those that predictions distinguish.
    """
    optimizer = arguments.text("optim")
    if fine_tuning(arguments):
        return
    if arguments.is_pure:
        yield overestimate(arguments.program.pure, WIDE_STATES)
    if optimizer not in optimizers and OF_EIGHT_BITS.fullmatch(optimizer):
        yield overestimate(optimizer, WIDE_MOMENTS)


def _is_on(arguments: "TrainerArguments", name: str) -> bool:
    """Return whether an argument is a switch that is on, or a number above 0."""
    option = arguments.options.get(name)
    return (option is not None and not option.values) or arguments.text(name).lower() not in _OFF


def _origin(arguments: "TrainerArguments", name: str) -> str:
    """Return the origin of an argument: the line, the file, or the program's default."""
    if name in arguments.options:
        return arguments.options.origin(name)
    return arguments.file if arguments.text(name) else f"default of {arguments.program.title}"
