"""Run one trial at a time on several hosts: an agent on each host runs its part.

A `HostPool` provides the hosts: a Slurm allocation, or the emulated hosts of this machine.
"""

import contextlib
import dataclasses
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from oppa.errors import EnvironmentLackingError, MeasurementError
from oppa.launchers.agent import AgentTask, exit_file
from oppa.launchers.agent_client import AgentClient
from oppa.launchers.exit_report import EXIT_BYTES, parse_exit
from oppa.plain_text import plain_text
from oppa.trials import logs, placement, scratch_dirs, untrusted_file
from oppa.trials.freezes import FreezeDetector
from oppa.trials.launcher import LOST, Exit
from oppa.trials.local import LINGER_S
from oppa.trials.queue_time import QueueTime
from oppa.trials.runner import Runner
from oppa.trials.trial_folder import CAUSE, TrialSpec

PATIENCE_S = 5.0
"""Seconds in addition to the grace period in which the hosts must report that no process is left."""
SILENCE_S = 8.0
"""Seconds without an event after which a host counts as dead.

It should send one every two seconds. The time is shorter than the one after which a program counts as hung.
"""
START_S = 20.0
"""Additional seconds before a host's first event, as it may wait for devices that release their memory slowly."""

_log = logging.getLogger(__name__)


class HostPool(Protocol):
    """Provides hosts that one trial at a time can hold (a host pool)."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the hosts, in the order in which ranks fill them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the hosts, for messages."""

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the hosts; until they are available, wait and call `on_tick`."""

    def commands(self, task: AgentTask) -> list[list[str]]:
        """Return the commands that start the agents: one for all hosts, or one per host.

        A command that finds a host gone may print the event `{"event": "lost", "host": 1}`, and then ends.
        """

    def on_first(self, argv: list[str]) -> list[str]:
        """Return a command that runs a small program on the first host, with our stdin and stdout, in parallel with trials."""

    def revoked(self) -> str:
        """Return why the hosts were withdrawn; empty while they are available."""

    def kill(self) -> None:
        """Kill all remaining processes of this job on the hosts."""


@runtime_checkable
class SharedHostPool(HostPool, Protocol):
    """Provides hosts that several launchers of this process can use at the same time."""

    def another(self) -> Self:
        """Return a pool of the same hosts for another launcher; `kill` of one pool leaves the processes of the other alone."""


class HostsLauncher:
    """Starts a runner's processes on all hosts of a host pool."""

    def __init__(self, runner: Runner, pool: HostPool, *, study: str, grace_s: float) -> None:
        self.queue_time = QueueTime()
        """Time in which the launcher waited for its hosts."""
        self._pool = pool
        self._study, self._runner = study, runner
        self._grace_s = grace_s if runner.grace_s is None else runner.grace_s
        self._folder = Path(tempfile.gettempdir(), scratch_dirs.name(study))
        self._folder.mkdir(mode=0o700)
        self._agents: AgentClient | None = None
        self._launches = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts of the pool."""
        return self._pool.names

    def prepare(self) -> None:
        """Start the agents, so that their imports overlap with the tuner's next computation."""
        self._living_agents()

    @contextlib.contextmanager
    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> Iterator[None]:
        """Hold the hosts, each with an agent that is ready; if they were withdrawn, wait until the host pool has them again.

        Raises:
            EnvironmentLackingError: the hosts are lost, or one of them does not answer.
        """
        while True:
            with contextlib.ExitStack() as held:
                with self.queue_time.waiting():
                    held.enter_context(self._pool.devices(spec, on_tick))
                agents = self._living_agents()
                try:
                    agents.wait_ready(on_tick)
                except OSError as error:
                    hosts = ", ".join(self._pool.names)
                    self.drop_agents()
                    if revoked := self.revoked(agents):
                        _log.warning("waiting for other hosts: %s", revoked)
                        on_tick()
                        continue
                    hint = "repair them, and run the same command again: the study keeps its trials"
                    raise EnvironmentLackingError(f"the hosts {hosts} cannot run trials: {error}", hint=hint) from None
                yield
                return

    def start_early(self, folder: Path, spec: TrialSpec, on_tick: Callable[[], None]) -> "HostsTrial":
        """Start a trial while the ranks of another launcher hold the devices; wait for the agents, and call `on_tick` meanwhile.

        Raises:
            OSError: a host does not answer.
        """
        self._living_agents().wait_ready(on_tick)
        return self.start(folder, spec, shared=True)

    def start(self, folder: Path, spec: TrialSpec, *, shared: bool = False) -> "HostsTrial":
        """Start the trial in `folder`, which all hosts must share.

        Args:
            shared: Another launcher's trial holds the devices, so their memory need not be free.

        Raises:
            OSError: the first host does not answer.
        """
        agents = self._living_agents()
        self._launches += 1
        trial = HostsTrial(self, agents, self._pool, folder, launch_id=self._launches)
        try:
            port = agents.ask_port(self._launches)
        except OSError:
            if agents.ended():
                return trial  # `poll` reports their end
            raise
        master, *others = self._pool.addresses
        facts = {"master": master, "peer": others[0] if others else "", "port": port, "shared": shared}
        agents.tell(do="start", launch_id=self._launches, folder=str(folder.resolve()), **facts)
        return trial

    def drop_agents(self) -> None:
        """End the agents and all their descendants; the next trial starts new ones."""
        if self._agents is not None:
            agents, self._agents = self._agents, None
            agents.close()
            self._pool.kill()

    def revoked(self, agents: AgentClient) -> str:
        """Return why hosts were withdrawn or lost, by the host pool or by the agents; empty while they are available."""
        if withdrawn := self._pool.revoked():
            return withdrawn
        if agents.lost is not None:
            return f"{LOST} {self._pool.names[agents.lost]}: its agent is gone"
        return "" if agents.leaving is None else f"host {self._pool.names[agents.leaving]} was signalled to end its trials"

    def close(self) -> None:
        """End everything that this launcher has started."""
        self.drop_agents()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _living_agents(self) -> AgentClient:
        if self._agents is not None and self._agents.ended():
            self.drop_agents()
        if self._agents is None:
            hosts, log = len(self._pool.addresses), self._folder / "agents.log"
            log.unlink(missing_ok=True)  # an earlier error is not the reason if these agents fail
            folder, runs = str(self._runner.folder), self._runner.trains_runs
            task = AgentTask(runner=folder, runs=runs, study=self._study, hosts=hosts, grace_s=self._grace_s)
            environment = placement.environment(self._runner, self._study, packages=self._folder / "packages")
            self._agents = AgentClient(self._pool.commands(task), hosts=hosts, environment=environment, grace_s=self._grace_s, log=log)
        return self._agents


class HostsTrial:
    """Runs a trial on several hosts."""

    def __init__(self, launcher: HostsLauncher, agents: AgentClient, pool: HostPool, folder: Path, *, launch_id: int) -> None:
        self._launcher, self._agents, self._pool = launcher, agents, pool
        self._folder = folder
        self._launch_id = launch_id
        self._exits: dict[int, Exit] = {}
        self._heard_at = dict.fromkeys(range(len(pool.addresses)), time.monotonic() + START_S)
        self._linger_until = math.inf
        self._freezes = FreezeDetector()

    def poll(self) -> Exit | None:
        """Return how its processes ended, or None while they run.

        After a failure, the result has the processes that ended before the reason was found.
        """
        if frozen_s := self._freezes.frozen_s():  # no agent could be heard
            self._heard_at = {host: at + frozen_s for host, at in self._heard_at.items()}
        how = self._agents.ended()  # checked before the events, so that all events sent before the end are read
        for event in self._agents.events():
            self._hear(event)
        if how:
            return self._lost(how)
        if silent := self._silent():
            return Exit(revoked=self._launcher.revoked(self._agents) or f"{LOST} {self._pool.names[silent[0]]}: it no longer responds")
        over = len(self._exits) == len(self._pool.addresses) or time.monotonic() > self._linger_until
        return _merged(self._exits.values()) if over else None

    def end(self, grace_s: float) -> None:
        """End all remaining processes on all hosts, return when none is left, and merge the logs of all hosts."""
        fit = not self._agents.ended() and not self._silent()
        if fit:
            self._agents.tell(do="end", launch_id=self._launch_id, grace_s=grace_s)
        if not fit or not self._agents.all_ended(self._launch_id, grace_s + PATIENCE_S):
            self._launcher.drop_agents()
        logs.gather(self._folder, self._pool.names)

    def _silent(self) -> list[int]:
        """Return the hosts that have not ended their part and have sent no event for too long."""
        return [host for host, at in self._heard_at.items() if host not in self._exits and time.monotonic() > at + SILENCE_S]

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("launch_id") != self._launch_id:
            return  # an event of an earlier trial
        self._heard_at[event["host"]] = time.monotonic()
        if event["event"] == "exit" and event["host"] not in self._exits:
            exit = self._exits[event["host"]] = self._handed_in(event["host"])
            if exit.failure or exit.first_abnormal:
                self._linger_until = min(self._linger_until, time.monotonic() + LINGER_S)

    def _handed_in(self, host: int) -> Exit:
        """Return how a host's processes ended. They could write in the trial's folder, so the file may hold anything."""
        file = exit_file(self._folder, host)
        try:
            return parse_exit(untrusted_file.read(file, limit_bytes=EXIT_BYTES) or b"")
        except (MeasurementError, ValueError, TypeError, KeyError) as error:
            failure = f"host {self._pool.names[host]} reported the end of its processes in a damaged `{file.name}`: {error}"
            return Exit(failure=plain_text(failure, limit=CAUSE))
        finally:
            with contextlib.suppress(OSError):
                file.unlink()

    def _lost(self, how: str) -> Exit:
        merged = _merged(self._exits.values())
        if revoked := self._launcher.revoked(self._agents):
            return dataclasses.replace(merged, revoked=revoked)
        return dataclasses.replace(merged, failure=merged.failure or how, traceback=merged.traceback or self._agents.last_words())


def _merged(exits: Any) -> Exit:
    """Merge the exits of all hosts: processes in the order of their ends, as far as the hosts' clocks agree."""
    ended = sorted((process for exit in exits for process in exit.processes), key=lambda process: process.time)
    failed = next((exit for exit in exits if exit.failure), Exit())
    oom = any(exit.kernel_oom for exit in exits)
    return Exit(processes=tuple(ended), failure=failed.failure, traceback=failed.traceback, kernel_oom=oom)
