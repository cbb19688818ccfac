"""One machine plays several hosts, joined by a real slow link: packets of real connections are carried, and wait.

What is not emulated: hosts share cores, memory and files, and a packet costs the machine some of its processor time.
"""

import contextlib
import math
import os
import subprocess
from pathlib import Path
from typing import Self

from oppa.errors import EnvironmentLackingError
from oppa.places import emulated_link
from oppa.places.emulated_host import EmulatedHost, make_host
from oppa.problem.cluster import Link
from oppa.trials.quota import quotas_lacking


class Netlab:
    """Emulated hosts and the link between them, until `close`, or until the thread that made it ends, whatever ends it.

    One process holds and does everything, the relay. Processes on a host outlive it, cut off from the others.

    Args:
        hosts: How many, up to 254.
        link: Between any two: a bandwidth for all that a host sends, and another as large for all that it receives; a delay one way.
        racks: In how many the hosts stand, as many in each.
        uplink_bytes_per_s: For all that a rack sends to others, and as much for what it receives.

    Raises:
        EnvironmentLackingError: this machine cannot play hosts; nothing of the attempt is left.
    """

    def __init__(self, hosts: int, link: Link, *, racks: int = 1, uplink_bytes_per_s: float = math.inf) -> None:
        with contextlib.ExitStack() as plugged:
            plugs = []
            for number in range(hosts):
                plugs.append(make_host(number))
                plugged.callback(plugs[-1].close)
            self._relay = subprocess.Popen(
                emulated_link.argv(
                    os.getpid(),
                    [plug.device for plug in plugs],
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                    latency_s=link.latency_s,
                    racks=racks,
                    uplink_bytes_per_s=uplink_bytes_per_s,
                ),
                pass_fds=[file for plug in plugs for file in (plug.namespace, plug.device)],
                start_new_session=True,  # Ctrl-C is for those who use the link
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
        """Whether the link is broken, because somebody ended the relay."""
        return self._relay.poll() is not None

    def close(self) -> None:
        """Break the link, and let go of the hosts."""
        self._relay.kill()
        self._relay.wait()


def netlab_lacking(*, cpus_per_rank: float | None = None) -> list[str]:
    """What of emulated hosts, and of CPU quotas if they are asked for, cannot be had here: the reasons; empty where all can."""
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
    """Why the relay cannot go before what else runs here; tried with this very thread, which then is as before."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        emulated_link.be_punctual()
    except OSError as error:
        return f"the link is slower than asked for while the cores are busy: no real-time priority ({error.strerror})"
    os.sched_setscheduler(0, policy, parameters)
    return ""
