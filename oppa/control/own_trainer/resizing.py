"""Follow requests to train on another number of hosts, on hosts that are requested and returned while the run trains."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from oppa.launchers.elastic_hosts import ElasticHosts
from oppa.launchers.hosts import HostsLauncher
from oppa.training.run import ledger
from oppa.training.run.resize import RESIZE, PresentSize, ResizeRequest
from oppa.training.run.run_folder import RunSpec
from oppa.trials.processes import this_process


class Resizing:
    """Reads requests for other numbers of hosts, and answers them.

    Args:
        folder: Folder of the run.
        hosts: Hosts of the run; None if their number cannot change while it trains.
        present: Number of hosts on which it trains.
    """

    def __init__(self, folder: Path, hosts: ElasticHosts | None, present: int) -> None:
        self._folder, self._hosts, self._present = folder, hosts, present
        self._version = (0, 0)
        """Time and inode of the newest request that was read."""
        self._newest: ResizeRequest | None = None
        self._refused = ""
        self._began = self._now()

    @property
    def shares_hosts(self) -> bool:
        """Return True if ranks of another layout can start on the hosts of the present ones."""
        return self._hosts is not None

    @property
    def request(self) -> ResizeRequest | None:
        """Return the request that stands; None if there is none, it asks for the present number, or it was refused."""
        try:
            facts = (self._folder / RESIZE).stat()
        except OSError:
            return None
        if (version := (facts.st_mtime_ns, facts.st_ino)) != self._version:
            self._version, self._newest = version, ResizeRequest.read(self._folder)
        newest = self._newest
        return newest if newest is not None and newest.hosts != self._present and newest.id != self._refused else None

    def can_follow(self, request: ResizeRequest, run: RunSpec) -> bool:
        """Return True if the run can get the hosts of a request while it trains, and the configuration is one on these hosts."""
        fits = request.configuration.devices == request.hosts * run.problem.cluster.devices_per_host
        return fits and self._hosts is not None and self._hosts.can_become(request.hosts)

    def launcher(self, hosts: int | None = None, on_tick: Callable[[], None] = lambda: None) -> HostsLauncher:
        """Return a launcher on a number of hosts, or on the present ones; raises EnvironmentLackingError if they are refused."""
        assert self._hosts is not None
        return self._hosts.launcher(hosts or self._present, on_tick)

    def can_return(self, hosts: int) -> bool:
        """Return True if a former number of hosts is still held."""
        return self._hosts is None or hosts <= len(self._hosts)

    def began(self, hosts: int) -> None:
        """State that the run trains on another number of hosts from now on."""
        self._present, self._began = hosts, self._now()
        self._state()

    def refuse(self, request: ResizeRequest, cause: str, *, excused: bool) -> None:
        """Refuse a request: the run goes on as it is.

        Args:
            excused: Hosts were withdrawn, which is no evidence about the number of hosts.
        """
        self._refused = request.id
        self._state(refused=request.id, cause=cause, excused=excused)

    def keep(self) -> None:
        """Return the hosts on which nothing trains."""
        if self._hosts is not None:
            self._hosts.keep(self._present)

    def close(self) -> None:
        """Return all hosts that were requested while the run trained."""
        if self._hosts is not None:
            self._hosts.close()

    def _now(self) -> tuple[float, int]:
        """Return the present Unix time, and the size of the ledger in bytes."""
        return time.time(), ledger.size(self._folder)

    def _state(self, *, refused: str = "", cause: str = "", excused: bool = False) -> None:
        at, size = self._began
        known = PresentSize(process=str(this_process()), hosts=self._present, at=at, size=size)
        dataclasses.replace(known, refused=refused, cause=cause, excused=excused).write(self._folder)
