"""Name arguments of the Trainer whose effect on memory predictions do not have: other optimizers, adapters, and quantised weights."""

from collections.abc import Collection, Iterator
from typing import Protocol

from oppa.problem.bounded_text import whole_number
from oppa.tuning.launch_line.trainer_program import TrainerProgram

_ADAPTERS = ("use_peft", "lora_enable", "use_lora", "low_rank_training", "use_llm_lora")
_QUANTIZED = ("load_in_4bit", "load_in_8bit", "quantization_bit", "quant_bits", "q_lora")
_OFF = ("false", "no", "none", "0")
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "adamw_8bit", "paged_adamw_8bit")
"""Optimizers of Transformers that its search space has, and predictions distinguish."""
_LIKE_ADAMW = ("adamw_torch_fused", "adamw_torch", "adamw_hf", "adamw_apex_fused", "paged_adamw", "paged_adamw_32bit")
"""Optimizers with two moments in 32 bits."""


class _Arguments(Protocol):
    """Provides the arguments of a program."""

    @property
    def program(self) -> TrainerProgram:
        """The program that reads them."""

    def text(self, name: str) -> str:
        """Return the text of an argument; empty if it is not stated."""

    def states(self, name: str) -> bool:
        """Return whether an argument is stated."""


def unpredicted(arguments: _Arguments, *, optimizers: Collection[str] = ()) -> Iterator[str]:
    """Yield a note for each argument with which a rank needs another amount of memory than predicted.

    Args:
        optimizers: Those that predictions distinguish.
    """
    optimizer = arguments.text("optim")
    if optimizer and optimizer not in (*optimizers, *_LIKE_ADAMW):
        yield f"predictions take AdamW with moments in 32 bits for `{optimizer}`, so its memory may differ"
    tuner = arguments.program.tuner
    if tuner and arguments.text(tuner) not in ("full", "freeze"):
        stated = f"{tuner} {arguments.text(tuner) or 'lora'}"
    else:
        stated = next((name for name in _ADAPTERS if _is_on(arguments, name)), "")
    if stated:
        yield f"predictions train all weights, so a rank with adapters (`{stated}`) needs less memory than predicted"
    if quantized := next((name for name in _QUANTIZED if _is_on(arguments, name)), ""):
        yield f"predictions have weights in 16 bits, so a rank with quantised ones (`{quantized}`) needs less memory than predicted"


def _is_on(arguments: _Arguments, name: str) -> bool:
    """Return whether an argument is a switch that is on, or a number above 0."""
    text = arguments.text(name).lower()
    return arguments.states(name) and text not in _OFF and (not text.isdigit() or bool(whole_number(text)))
