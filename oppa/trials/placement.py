"""What a rank is started with: its command, its environment, its CPU group."""

import dataclasses
import os
import socket
from pathlib import Path

from oppa import catalog
from oppa.trials import environments, processes
from oppa.trials.quota import CpuGroups
from oppa.trials.runner import Runner, command_path
from oppa.trials.wire import TrialSpec

TORCHRUN_RANKS = "PET_NPROC_PER_NODE"
"""What torchrun reads where its `--nproc-per-node` is not given."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One process to start, as `runners/parent.py` is told of it."""

    rank: int | None
    """None for a command that starts the ranks itself."""
    world: int
    argv: list[str] | None
    """None for a fork that calls the program's `run`."""
    environment: dict[str, str]
    groups: list[str]


def environment(runner: Runner, study: str, *, packages: Path) -> dict[str, str]:
    """What every process of a study is executed with: its tags, `runners/` on PYTHONPATH, one thread per rank (a rank is a device).

    Args:
        packages: A folder of the study's own, where a runner that is isolated finds oppa.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    own = environments.variables(runner.python, packages) if runner.isolated else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    paths = [str(catalog.root() / "runners"), own["PYTHONPATH"]]
    return {
        **os.environ,
        **threads,
        "PATH": command_path(),
        "PYTHONUNBUFFERED": "1",
        **own,
        **runner.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        processes.STUDY_TAG: study,
        processes.TUNER_TAG: str(processes.this_process()),
    }


def cpu_groups(runner: Runner, spec: TrialSpec) -> CpuGroups | None:
    """A CPU group per process, if the cluster asks for quotas; the processes of a `command` share one."""
    cpus, world = spec.cluster.cpus_per_device, spec.configuration.devices
    if cpus is None:
        return None
    return CpuGroups(spec.study, ranks=1, cpus=cpus * world) if runner.command else CpuGroups(spec.study, ranks=world, cpus=cpus)


def place(runner: Runner, spec: TrialSpec, folder: Path, *, warm: bool, rendezvous: Path, groups: CpuGroups | None) -> list[Placement]:
    """The processes of a trial on this host: one per rank, or the one command that starts them."""
    world = spec.configuration.devices
    argv = None if warm else runner.argv(nproc=world, folder=folder)
    names = [[str(group)] for group in groups.ranks] if groups else [[]] * world
    if runner.command:
        told = {"OPPA_TRIAL": str(folder), TORCHRUN_RANKS: str(spec.cluster.devices_per_host)}
        return [Placement(rank=None, world=world, argv=argv, environment=told, groups=names[0])]
    common = {
        "OPPA_TRIAL": str(folder),
        "OPPA_RENDEZVOUS": f"file://{rendezvous}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return [Placement(rank=rank, world=world, argv=argv, environment=own[rank], groups=names[rank]) for rank in range(world)]


def _free_port() -> int:
    """For programs that know no rendezvous by file; another process may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
