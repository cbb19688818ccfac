"""Describe how the processes of a trial are started: their commands, environments and CPU groups."""

import dataclasses
import os
import socket
from pathlib import Path

from oppa import catalog
from oppa.problem.trial_values import CACHES
from oppa.trials import environments, processes
from oppa.trials.cgroups import CpuGroups
from oppa.trials.runner import Runner
from oppa.trials.trial_folder import TrialSpec

COMPILED = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Caches of compiled kernels, by the variable that names the folder. Their defaults may be in a temporary folder, which a job loses."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Numbers of threads of a rank, which is a device: 1, unless the user has set another for their own program."""
TORCHRUN_RANKS = "PET_NPROC_PER_NODE"
"""The variable that torchrun reads if `--nproc-per-node` is not given."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Describes one host's part in a trial: the ranks from `index * devices_per_host` on, one for each device of the host."""

    index: int = 0
    hosts: int = 1
    rendezvous: str
    """Address at which the ranks meet, as torch's `init_method`."""
    master: str = "127.0.0.1"
    """The address of the host of rank 0."""
    port: int
    """Port of rank 0, for programs that support no rendezvous by file."""
    interface: str = ""
    """The network interface that leads to the other hosts."""

    def ranks(self, spec: TrialSpec) -> range:
        """Return the ranks of the trial that this host runs."""
        world, here = spec.configuration.devices, spec.cluster.devices_per_host
        return range(world) if self.hosts == 1 else range(self.index * here, min((self.index + 1) * here, world))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Describes one process to start, in the form that `runners/fork_server.py` receives."""

    rank: int | None
    """The rank of the process; None for a command that starts the ranks itself."""
    world: int
    argv: list[str] | None
    """Command line of the process; None for a fork that calls the program's `run`."""
    environment: dict[str, str]
    groups: list[str]


def environment(runner: Runner, study: str, *, packages: Path) -> dict[str, str]:
    """Return the environment of every process of a study: its tags, `oppa_client` on PYTHONPATH, and one thread per rank.

    Args:
        packages: A folder of the study's own, in which a runner that is isolated finds oppa.
    """
    threads = {name: "1" for name in THREADS if not runner.command or name not in os.environ}
    own = environments.variables(runner.python, packages) if runner.isolated else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    paths = [str(catalog.client()), own["PYTHONPATH"]]
    return {
        **environments.inherited(),
        **threads,
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONUNBUFFERED": "1",
        **own,
        **runner.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        processes.STUDY_TAG: study,
        processes.TUNER_TAG: processes.tuner_tag(),
    }


def cpu_groups(runner: Runner, spec: TrialSpec, seat: Seat) -> CpuGroups | None:
    """Return a CPU group per process, or None if the cluster sets no quotas; the processes of a `command` share one group."""
    cpus = spec.cluster.cpus
    if not cpus:
        return None
    own = [cpus[rank % len(cpus)] for rank in seat.ranks(spec)]
    return CpuGroups(spec.study, [sum(own)] if runner.command else own)


def place(runner: Runner, spec: TrialSpec, folder: Path, seat: Seat, *, warm: bool, groups: CpuGroups | None) -> list[RankPlacement]:
    """Return the processes of a trial on this host: one per rank, or the one command that starts them."""
    world, ranks = spec.configuration.devices, seat.ranks(spec)
    argv = None if warm else runner.argv(nproc=len(ranks), folder=folder)
    names = [[str(group)] for group in groups.ranks] if groups else [[]] * len(ranks)
    shared = {**_caches(runner, folder), **spec.environment, "OPPA_TRIAL": str(folder), **_interfaces(seat)}
    if runner.command:
        return [RankPlacement(rank=None, world=world, argv=argv, environment=shared | _torchrun(seat, spec), groups=names[0])]
    common = {
        **shared,
        "OPPA_RENDEZVOUS": seat.rendezvous,
        "MASTER_ADDR": seat.master,
        "MASTER_PORT": str(seat.port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "GROUP_RANK": str(seat.index),
    }
    own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in enumerate(ranks)]
    return [
        RankPlacement(rank=rank, world=world, argv=argv, environment=own[local], groups=names[local]) for local, rank in enumerate(ranks)
    ]


def _caches(runner: Runner, folder: Path) -> dict[str, str]:
    """Return the variables that keep compiled kernels in the study, for its later trials, unless the user or the runner has set them.

    Each host has its own folder, because ranks of several hosts would wait for each other's locks on a network file system.
    """
    kept = folder.parent.parent / CACHES / socket.gethostname()
    return {name: str(kept / kind) for name, kind in COMPILED.items() if name not in os.environ and name not in runner.environment}


def _torchrun(seat: Seat, spec: TrialSpec) -> dict[str, str]:
    """Return the variables that torchrun reads in place of options: PET_ and the option's name."""
    ranks = {TORCHRUN_RANKS: str(spec.cluster.devices_per_host)}
    if seat.hosts == 1:  # torchrun's own port is the same in all launches, of which two may run at once
        return ranks if "PET_MASTER_PORT" in os.environ else ranks | {"PET_MASTER_PORT": str(seat.port)}
    hosts = {"PET_NNODES": seat.hosts, "PET_NODE_RANK": seat.index, "PET_MASTER_ADDR": seat.master, "PET_MASTER_PORT": seat.port}
    return ranks | {name: str(value) for name, value in hosts.items()}


def _interfaces(seat: Seat) -> dict[str, str]:
    """Return the variable that names gloo's network interface, unless the user has set it.

    gloo would otherwise resolve the host's own name, which may be unknown or lead to a slow interface.
    """
    name = "GLOO_SOCKET_IFNAME"
    return {name: seat.interface} if seat.interface and name not in os.environ else {}


def free_port() -> int:
    """Return a port of this host that is free now; another process may still take it first."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
