"""Count the ranks of a configuration that share something, degrees that only some search spaces declare included.

The tensor-parallel index of a rank varies fastest, then the context-parallel, then the data-parallel, then the pipeline's.
"""

from oppa.errors import InputError
from oppa.problem.configuration import Configuration

SIMULATED_EXTRAS = ("cp", "dp_shard")
"""Extra parameters that the simulator supports: context parallelism, and the groups of HSDP."""


def context_parallel(configuration: Configuration) -> int:
    """Return the number of ranks that split the tokens of a sequence."""
    return int(configuration.get("cp", 1))


def replicas(configuration: Configuration) -> int:
    """Return the number of ranks that hold the same weights, and add their gradients."""
    return configuration.dp * context_parallel(configuration)


def shards(configuration: Configuration) -> int:
    """Return the number of ranks over which ZeRO shards: all replicas, or one group of them under HSDP.

    Raises:
        InputError: groups of HSDP have experts, whose replicas are not simulated.
    """
    group = int(configuration.get("dp_shard", 0))
    if group and configuration.ep > 1:
        raise InputError(f"`dp_shard = {group}` with `ep = {configuration.ep}` is not simulated", hint="use one of the two")
    return (group or configuration.dp) * context_parallel(configuration)


def expert_shards(configuration: Configuration) -> int:
    """Return the number of ranks over which ZeRO shards an expert."""
    return shards(configuration) // configuration.ep
