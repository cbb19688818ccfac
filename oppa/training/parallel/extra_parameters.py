"""Read the parameters of this core that only search spaces declare; a configuration that lacks one has its default.

cp                  degree: ranks that share each sequence (context parallelism); 1
dp_shard            data-parallel ranks over which ZeRO shards the training state, with copies on the others (HSDP); 0 for all
sequence_parallel   whether tensor-parallel ranks hold parts of the tokens outside tensor-parallel layers; false
recompute_layers    layers of each stage, from its first on, that recompute = "full" recomputes; 0 for all
"""

from oppa.errors import InputError
from oppa.problem.configuration import Configuration


def context_parallel(configuration: Configuration) -> int:
    """Return the number of ranks that share each sequence."""
    return _number(configuration, "cp", least=1)


def replicas_of(configuration: Configuration) -> int:
    """Return the number of ranks that train the same parameters, over which gradients are averaged: dp * cp."""
    return configuration.dp * context_parallel(configuration)


def shards_of(configuration: Configuration) -> int:
    """Return the number of replicas over which ZeRO shards the training state; the other replicas hold copies."""
    return (_number(configuration, "dp_shard", least=0) or configuration.dp) * context_parallel(configuration)


def sequence_parallel(configuration: Configuration) -> bool:
    """Return whether tensor-parallel ranks hold parts of the tokens between their layers; raises InputError if it is not true or false."""
    value = configuration.get("sequence_parallel", False)
    if not isinstance(value, bool):
        raise InputError(f"`sequence_parallel = {value}` is neither true nor false", hint="give `sequence_parallel` other values")
    return value and configuration.tp > 1


def recompute_of(configuration: Configuration, layer: int) -> str:
    """Return the activations that a layer recomputes; layers are numbered from 0 in each stage."""
    most = _number(configuration, "recompute_layers", least=0)
    return "none" if configuration.recompute == "full" and 0 < most <= layer else configuration.recompute


def _number(configuration: Configuration, name: str, *, least: int) -> int:
    """Return the value of a parameter; raises InputError if it is not a whole number, or too small."""
    value = configuration.get(name, least)
    if type(value) is not int or value < least:
        raise InputError(f"`{name} = {value}` is not a whole number from {least} on", hint=f"give `{name}` other values")
    return value
