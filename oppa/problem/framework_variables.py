"""State the environment variables that a framework requires of a configuration; a value in the user's environment takes precedence."""

import os
from collections.abc import Collection, Mapping

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration

MEGATRON = "megatron"
"""Name of Megatron-LM as a framework, and as a format of steps."""
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_BLACKWELL = ("B200", "B300", "GB200", "GB300")
_FSDP = {"--use-megatron-fsdp", "--use-torch-fsdp2"}
"""Options under which Megatron-LM refuses a single connection."""


def megatron_variables(configuration: Configuration, cluster: Cluster, words: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that Megatron-LM requires of a configuration.

    On GPUs before Blackwell it asserts one connection with tensor or context parallelism. The overlap of expert parallelism needs more, of
    which its message names 32 (`validate_args` of megatron/training/arguments.py, core 0.16.1).

    Args:
        words: The launch line.
    """
    if cluster.device.startswith(_BLACKWELL) or not _FSDP.isdisjoint(words):
        return {}
    if configuration.get("moe_comm_overlap", False):
        return {_CONNECTIONS: "32"}
    return {_CONNECTIONS: "1"} if configuration.tp > 1 or int(configuration.get("cp", 1)) > 1 else {}


def lacking(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this process's environment lacks, or has as an empty text."""
    return {name: value for name, value in variables.items() if not os.environ.get(name)}
