"""`oppa emulate -- COMMAND`: emulate several hosts on this machine, joined by a link with real delays."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.launchers.emulation.netlab import Netlab
    from oppa.problem.cluster import Link
    from oppa.trials.cgroups import CpuGroups

COMMAND = "Command that every rank runs; or `oppa ...`, which places its ranks itself."
BANDWIDTH = "Bandwidth of each host's link, in each direction: `200mbit`, `25 MB/s`."
LATENCY = "One-way latency of the link: `1ms` gives a round trip of 2 ms."
RACKS = "Number of racks, with equally many hosts each; `--uplink` joins them."
UPLINK = "Bandwidth of each rack's link to the others, in each direction: `100mbit`."
CPUS = "CPU quota of each rank, in cores, so that each rank is a device; no quota by default."
GRACE_S = 5.0
"""Seconds between the request to end and the kill of a rank."""


def emulate(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help=COMMAND, show_default=False)],
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help=BANDWIDTH)],
    latency: Annotated[str, typer.Option(metavar="DURATION", help=LATENCY)],
    hosts: Annotated[int, typer.Option(min=1, max=254, help="Number of emulated hosts.")] = 2,
    ranks_per_host: Annotated[int, typer.Option(min=1, help="Number of ranks on each host.")] = 1,
    racks: Annotated[int, typer.Option(min=1, help=RACKS)] = 1,
    uplink: Annotated[str, typer.Option(metavar="RATE", help=UPLINK)] = "",
    cpus_per_rank: Annotated[float | None, typer.Option(metavar="CORES", help=CPUS)] = None,
) -> None:
    """Run a command on several emulated hosts of this machine, joined by a link of limited bandwidth and real latency.

    COMMAND starts once per rank, with torchrun's variables, on the rank's host: a network namespace, which delays packets to other hosts.
    Each line of output begins with its rank, such as `\\[rank 0]`. A rank that fails ends the others.
    oppa itself (`-- oppa tune ...`) starts once, outside the hosts, finds them in OPPA_NETLAB, and places its ranks itself.

    The command needs Linux and root, and removes the hosts at its end. Carrying 200 Mbit/s takes about 0.15 cores, 1 Gbit/s 0.25.

    Exit codes: that of the first rank that fails (128 + signal if it was killed), 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa.launchers.emulation.netlab import Netlab
    from oppa.problem.cluster import Link
    from oppa.units import format_bandwidth, parse_seconds

    link = Link(bandwidth_bytes_per_s=_bandwidth("--bandwidth", bandwidth), latency_s=parse_seconds(latency))
    uplink_bytes_per_s = _uplink(uplink, racks, hosts)
    _check(command, cpus_per_rank)
    with Netlab(hosts, link, racks=racks, uplink_bytes_per_s=uplink_bytes_per_s) as lab:
        _announce(lab, link, ranks_per_host, cpus_per_rank)
        if racks > 1:
            _say(f"racks: {racks}, joined by {format_bandwidth(uplink_bytes_per_s)} each")
        if _is_oppa(command):
            slowest = dataclasses.replace(link, bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s, uplink_bytes_per_s))
            _become(command, lab, slowest, ranks_per_host=ranks_per_host, cpus_per_rank=cpus_per_rank)
        code = _run(command, lab, ranks_per_host, cpus_per_rank)
    raise typer.Exit(128 - code if code < 0 else code)


def _bandwidth(option: str, text: str) -> float:
    from oppa.units import parse_bandwidth

    bytes_per_s = parse_bandwidth(text)
    if bytes_per_s == 0:
        raise InputError(f"nothing passes a link of `{option} {text}`", hint="use more than 0, such as `200mbit`")
    return bytes_per_s


def _uplink(uplink: str, racks: int, hosts: int) -> float:
    """Return the bytes per second between racks; raises InputError if hosts do not fill the racks, or no link joins them."""
    if hosts % racks:
        raise InputError(f"{hosts} hosts do not fill {racks} racks", hint=f"use a number of racks that divides `--hosts {hosts}`")
    if bool(uplink) != (racks > 1):
        lacking = "`--uplink` needs several racks" if uplink else f"`--racks {racks}` needs an uplink"
        raise InputError(lacking, hint="give both, such as `--racks 2 --uplink 100mbit`")
    return _bandwidth("--uplink", uplink) if uplink else math.inf


def _check(command: list[str], cpus_per_rank: float | None) -> None:
    """Raise InputError if the program does not exist, or the CPU quota is not positive."""
    if shutil.which(command[0]) is None:
        raise InputError(f"there is no program `{command[0]}`", hint="check that it is on PATH, and executable")
    if cpus_per_rank is not None and not 0 < cpus_per_rank < float("inf"):
        raise InputError(f"`--cpus-per-rank {cpus_per_rank:g}` is no number of cores", hint="use more than 0, such as `0.5`")


def _announce(lab: "Netlab", link: "Link", ranks_per_host: int, cpus_per_rank: float | None) -> None:
    from oppa.launchers.emulation.netlab import netlab_lacking
    from oppa.units import format_bandwidth, format_seconds

    what = f"{format_bandwidth(link.bandwidth_bytes_per_s)}, {format_seconds(link.latency_s)} one way"
    _say(f"emulated hosts: {len(lab.hosts)} (from {lab.hosts[0].address}), ranks per host: {ranks_per_host}, link: {what}")
    for lacking in netlab_lacking(cpus_per_rank=cpus_per_rank):
        _say(f"warning: {lacking}")


def _is_oppa(command: list[str]) -> bool:
    name = Path(command[0]).name
    return name == "oppa" or (name.startswith("python") and command[1:3] == ["-m", "oppa"])


def _become(command: list[str], lab: "Netlab", link: "Link", *, ranks_per_host: int, cpus_per_rank: float | None) -> NoReturn:
    """Execute oppa in place of this process. It then has the terminal, signals and exit code, and the emulated hosts end with it."""
    from oppa.launchers.emulation.host import INTERFACE

    lab_facts = {
        "hosts": [{"address": host.address, "namespace": str(host.namespace)} for host in lab.hosts],
        "interface": INTERFACE,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
        "ranks_per_host": ranks_per_host,
        "cpus_per_rank": cpus_per_rank,
        "command": ["oppa", *sys.argv[1 : sys.argv.index("--") + 1]] if "--" in sys.argv else [],
    }
    os.execvpe(command[0], command, {**os.environ, "OPPA_NETLAB": json.dumps(lab_facts)})


def _run(command: list[str], lab: "Netlab", ranks_per_host: int, cpus_per_rank: float | None) -> int:
    """Run the command on all ranks; return the code of the first rank that failed, minus its signal if it was killed, else 0."""
    from oppa.launchers.emulation.ranks import EmulatedRanks

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # ends as Ctrl-C does
    ranks = len(lab.hosts) * ranks_per_host
    with (
        _quotas(ranks, cpus_per_rank) as groups,
        EmulatedRanks(lab, command, ranks_per_host=ranks_per_host, groups=groups, grace_s=GRACE_S) as running,
    ):
        return running.wait(_print if ranks > 1 else _print_plainly)


@contextlib.contextmanager
def _quotas(ranks: int, cpus_per_rank: float | None) -> "Iterator[CpuGroups | None]":
    """Yield a CPU group per rank, or None if none is requested or none can be made."""
    from oppa.trials import cgroups

    cgroups.remove_abandoned("netlab")
    if cpus_per_rank is None or cgroups.quotas_lacking():
        yield None
        return
    groups = cgroups.CpuGroups("netlab", [cpus_per_rank] * ranks)
    try:
        yield groups
    finally:
        groups.close()


def _print(rank: int, stream: int, line: bytes) -> None:
    _print_plainly(rank, stream, b"[rank %d] %b" % (rank, line))


def _print_plainly(_rank: int, stream: int, line: bytes) -> None:
    file = (sys.stdout if stream == 1 else sys.stderr).buffer
    file.write(line)
    file.flush()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
