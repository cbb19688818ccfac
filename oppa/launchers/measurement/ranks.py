"""Find the ranks that measure together: those that torchrun or srun started, or those that `local` starts on this host."""

import dataclasses
import os
import re
import socket
from collections.abc import Mapping, MutableMapping

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm

_PORTS = range(20_000, 30_000)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """Describes one process of a launch: its rank, its index on its host, and its host."""

    rank: int
    world: int
    local: int
    host: str
    """Word that all ranks of one host share."""


def launched(environment: MutableMapping[str, str] = os.environ) -> LaunchedRank | None:
    """Return this process's rank if torchrun or srun started several; None if it runs alone.

    For ranks of srun, the variables that torch reads are added to the environment.

    Raises:
        EnvironmentLackingError: the launcher's variables are incomplete.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _torchrun(environment)
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environment:
        return _srun(environment)
    return None


def _torchrun(environment: Mapping[str, str]) -> LaunchedRank:
    host = environment.get("GROUP_RANK") or socket.gethostname()
    try:
        rank, world, local = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        environment["MASTER_ADDR"], environment["MASTER_PORT"]
    except (KeyError, ValueError) as error:
        message = f"RANK is set, but the launcher's variables are incomplete: {error}"
        raise EnvironmentLackingError(message, hint="start it with `torchrun`, or unset RANK and WORLD_SIZE") from None
    return LaunchedRank(rank=rank, world=world, local=local, host=host)


def _srun(environment: MutableMapping[str, str]) -> LaunchedRank:
    try:
        rank, world, local = (int(environment[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
        job, step = int(environment["SLURM_JOB_ID"]), environment.get("SLURM_STEP_ID", "0")
    except (KeyError, ValueError) as error:
        message = f"srun's variables are incomplete: {error}"
        raise EnvironmentLackingError(message, hint="start it with `srun` or `torchrun`") from None
    if "MASTER_ADDR" not in environment:
        environment["MASTER_ADDR"] = slurm.first_address(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
    port = _PORTS[(job * 31 + int(re.sub(r"\D", "", step) or 0)) % len(_PORTS)]  # all ranks compute the same one
    environment.setdefault("MASTER_PORT", str(port))
    environment.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local))
    return LaunchedRank(rank=rank, world=world, local=local, host=environment.get("SLURM_NODEID") or socket.gethostname())
