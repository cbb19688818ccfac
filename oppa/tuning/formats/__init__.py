"""Translate configurations to frameworks' own files and back, with a module for each format."""

from oppa.errors import InputError, require_known
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.tuning.formats import (
    accelerate,
    colossalai,
    deepspeed,
    kubernetes,
    lightning,
    megatron,
    megatron_bridge,
    torchrun,
    torchtitan,
    transformers,
)
from oppa.tuning.formats.format import Files, Format, Reading

FORMATS: dict[str, Format] = {
    "torchrun": torchrun,
    "kubernetes": kubernetes,
    "deepspeed": deepspeed,
    "colossalai": colossalai,
    "megatron": megatron,
    "megatron-bridge": megatron_bridge,
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
}


def format_named(name: str) -> Format:
    """Return a format by its name; raises InputError if there is none."""
    require_known(name, FORMATS, f"`{name}` is not a format")
    return FORMATS[name]


def read(name: str, problem: Problem, files: Files) -> Reading:
    """Return what the files of a format state about a configuration.

    Raises:
        InputError: they cannot be read, or state a value that its parameter cannot have.
    """
    reading = format_named(name).parse(problem, files)
    reading.require_values(problem.space)
    return reading


def export(name: str, problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files that start a job with a configuration, by name.

    Raises:
        InputError: for a parameter or a value that the format cannot express. Nothing is ever dropped.
    """
    return format_named(name).export(problem, configuration)


def exports(problem: Problem, configuration: Configuration) -> dict[str, dict[str, str] | InputError]:
    """Return the files of every format, or the error if it cannot express the configuration."""
    found: dict[str, dict[str, str] | InputError] = {}
    for name in FORMATS:
        try:
            found[name] = export(name, problem, configuration)
        except InputError as error:
            found[name] = error
    return found
