"""Change the number of a run's hosts while it trains: join the hosts of several requests into one host pool.

A run begins on the hosts of its first request. It grows by a further request, whose hosts follow those that it has. It shrinks by the
return of whole requests, the last one first.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from oppa.launchers.agent import AgentTask
from oppa.launchers.hosts import HostPool, HostsLauncher, SharedHostPool
from oppa.trials.trial_folder import TrialSpec


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedHosts:
    """Joins the hosts of several pools into one host pool, in their order."""

    pools: tuple[HostPool, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the hosts."""
        return tuple(address for pool in self.pools for address in pool.addresses)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the hosts."""
        return tuple(name for pool in self.pools for name in pool.names)

    @contextlib.contextmanager
    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> Iterator[None]:
        """Hold the hosts of all pools, one pool after the other."""
        with contextlib.ExitStack() as held:
            for pool in self.pools:
                held.enter_context(pool.devices(spec, on_tick))
            yield

    def commands(self, task: AgentTask) -> list[list[str]]:
        """Return the commands of all pools."""
        firsts = itertools.accumulate((len(pool.addresses) for pool in self.pools), initial=task.first)
        return [
            command
            for pool, first in zip(self.pools, firsts, strict=False)
            for command in pool.commands(dataclasses.replace(task, first=first))
        ]

    def on_first(self, argv: list[str]) -> list[str]:
        """Return a command that runs a small program on the first host."""
        return self.pools[0].on_first(argv)

    def revoked(self) -> str:
        """Return why hosts of a pool were withdrawn; empty while all are available."""
        return next((why for pool in self.pools if (why := pool.revoked())), "")

    def kill(self) -> None:
        """Kill all remaining processes of this job on all hosts."""
        for pool in self.pools:
            pool.kill()


OpenMoreHosts = Callable[[int, Callable[[], None]], AbstractContextManager[SharedHostPool]]
"""Waits until so many further hosts are granted, ticks meanwhile, and holds them inside the context.

It raises EnvironmentLackingError if they can never be granted, or the request was cancelled.
"""


class ElasticHosts:
    """Holds the hosts of a run whose number changes while it trains.

    One thread at a time changes them: `launcher` may run in another thread, whose end the caller awaits before `keep` or `close`.

    Args:
        first: Hosts of the first request, which the caller holds.
        open_more: Requests further hosts; None if the launcher has no others.
        make_launcher: Returns a launcher on the hosts of a pool.
    """

    def __init__(self, first: SharedHostPool, open_more: OpenMoreHosts | None, make_launcher: Callable[[HostPool], HostsLauncher]) -> None:
        self._open_more, self._make_launcher = open_more, make_launcher
        self._held: list[tuple[SharedHostPool, contextlib.ExitStack]] = [(first, contextlib.ExitStack())]
        """The pool of each request, and what returns its hosts."""

    def __len__(self) -> int:
        """Return the number of hosts that are held."""
        return self._sizes()[-1]

    def can_become(self, hosts: int) -> bool:
        """Return True if whole requests have so many hosts, or a further one can be made."""
        return hosts in self._sizes() or (hosts > len(self) and self._open_more is not None)

    def launcher(self, hosts: int, on_tick: Callable[[], None]) -> HostsLauncher:
        """Return a launcher on the first `hosts` hosts, whose ranks can run at the same time as those of another one.

        Hosts that are lacking are requested; `on_tick` is called until they are granted, and its exceptions propagate.

        Raises:
            EnvironmentLackingError: they can never be granted, or the request was cancelled.
        """
        if hosts > len(self):
            assert self._open_more is not None
            granted = contextlib.ExitStack()
            self._held.append((granted.enter_context(self._open_more(hosts - len(self), on_tick)), granted))
        pools = tuple(pool.another() for pool, _ in self._held[: self._sizes().index(hosts) + 1])
        return self._make_launcher(pools[0] if len(pools) == 1 else JoinedHosts(pools))

    def keep(self, hosts: int) -> None:
        """Return the hosts of all requests that came after the first `hosts` hosts; do nothing if fewer are held."""
        while len(self._held) > 1 and len(self) > hosts:
            self._held.pop()[1].close()

    def close(self) -> None:
        """Return the hosts of all requests but the first, which the caller holds."""
        self.keep(0)

    def _sizes(self) -> list[int]:
        """Return the number of hosts of the first request, of the first two, and so on."""
        return list(itertools.accumulate(len(pool.addresses) for pool, _ in self._held))
