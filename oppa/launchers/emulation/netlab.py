"""Emulate several hosts on one machine, joined by a slow link that delays the packets of real connections.

The emulation has limits: hosts share cores, memory and files, and each packet costs some processor time.
"""

import contextlib
import math
import os
import subprocess
from pathlib import Path
from typing import Self

from oppa.errors import EnvironmentLackingError
from oppa.launchers.emulation import switch
from oppa.launchers.emulation.host import EmulatedHost, make_host
from oppa.problem.cluster import Link
from oppa.trials.cgroups import quotas_lacking


class Netlab:
    """Emulates hosts and the link between them. They exist until `close`, or until the thread that created them ends for any reason.

    One process, the relay, holds the devices and carries all packets. Processes on a host may outlive it, but are then disconnected.

    Args:
        hosts: Number of hosts, up to 254.
        link: Bandwidth of each host, separate for sent and received data; and one-way delay between two hosts.
        racks: Number of racks of equal size.
        uplink_bytes_per_s: Bandwidth between a rack and all others, separate for sent and received data.

    Raises:
        EnvironmentLackingError: this machine cannot emulate hosts. All hosts of the attempt are released.
    """

    def __init__(self, hosts: int, link: Link, *, racks: int = 1, uplink_bytes_per_s: float = math.inf) -> None:
        with contextlib.ExitStack() as plugged:
            plugs = []
            for number in range(hosts):
                plugs.append(make_host(number))
                plugged.callback(plugs[-1].close)
            self._relay = subprocess.Popen(
                switch.argv(
                    os.getpid(),
                    [plug.device for plug in plugs],
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                    latency_s=link.latency_s,
                    racks=racks,
                    uplink_bytes_per_s=uplink_bytes_per_s,
                ),
                pass_fds=[file for plug in plugs for file in (plug.namespace, plug.device)],
                start_new_session=True,  # Ctrl-C is for the users of the link
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        files = f"/proc/{self._relay.pid}/fd"
        self.hosts = tuple(EmulatedHost(address=plug.address, namespace=Path(files, str(plug.namespace))) for plug in plugs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ended(self) -> bool:
        """Return True if the relay has ended, which breaks the link."""
        return self._relay.poll() is not None

    def close(self) -> None:
        """End the relay, and release the hosts."""
        self._relay.kill()
        self._relay.wait()


def netlab_lacking(*, cpus_per_rank: float | None = None) -> list[str]:
    """Return the reasons why emulated hosts, or CPU quotas if `cpus_per_rank` is given, do not work here; empty if they do."""
    if refused := _hosts_lacking():
        return [refused]
    reasons = (_punctuality_lacking(), quotas_lacking() if cpus_per_rank else "")
    return [reason for reason in reasons if reason]


def _hosts_lacking() -> str:
    try:
        make_host(0).close()
    except EnvironmentLackingError as error:
        return error.message
    return ""


def _punctuality_lacking() -> str:
    """Return why the relay cannot have real-time priority; empty if it can.

    The check raises the priority of this thread, and restores it.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        switch.be_punctual()
    except OSError as error:
        return f"the link is slower than requested while the cores are busy: no real-time priority ({error.strerror})"
    os.sched_setscheduler(0, policy, parameters)
    return ""
