"""Run trials on this host with one rank per device; ranks are forked from a fork server if the runner allows it, else executed."""

import contextlib
import dataclasses
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from oppa.trials import devices, logs, placement, scratch_dirs
from oppa.trials.cgroups import quotas_lacking
from oppa.trials.device_lock import exclusive
from oppa.trials.extension_locks import ExtensionLocks
from oppa.trials.fork_server import ForkServer
from oppa.trials.launcher import Exit, ProcessExit, RevocableHosts
from oppa.trials.placement import Seat
from oppa.trials.queue_time import QueueTime
from oppa.trials.runner import Runner
from oppa.trials.trial_folder import REPORT, TrialSpec

TRIM_S = 1.0
"""Seconds between two checks of the size of the logs."""
LINGER_S = 1.5
"""Seconds that the other ranks get to fail by themselves and report why, after a rank has ended abnormally without a report."""

CONFIRM_S = 1.0
"""Seconds that the parent gets to report that all ranks have ended; then it is replaced."""

_log = logging.getLogger(__name__)


class LocalLauncher:
    """Starts a runner's processes on this host, all of them below a shim, so that none outlives this process.

    The environment of every process carries the study's id and this tuner's identity, for the sweep at the next start.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        study: str,
        grace_s: float,
        warm: bool = True,
        hosts: Sequence[str] = (),
        allocation: RevocableHosts | None = None,
    ) -> None:
        self.hosts = hosts
        """Names of the hosts on which the ranks run; empty if they are not known."""
        self.queue_time = QueueTime()
        """Time in which the launcher waited for the trials of others, or for the allocation."""
        self.allocation = allocation
        """Hosts on which the launch line starts ranks by itself; None if they are on this host."""
        self._runner = runner
        self._study = study
        self._grace_s = grace_s if runner.grace_s is None else runner.grace_s
        self._warm = warm and runner.warm
        self._folder = Path(tempfile.gettempdir(), scratch_dirs.name(study))
        self._folder.mkdir(mode=0o700)
        self._parent: ForkServer | None = None
        self._launches = 0
        self._quotas_lacking: str | None = None
        self._device_bytes: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Start the parent of the ranks unless it runs, so that its imports overlap with the caller's next work."""
        with contextlib.suppress(OSError):  # the first `start` tries again, and raises
            self._ready_parent()

    @contextlib.contextmanager
    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> Iterator[None]:
        """Hold this host's devices, because two trials that share devices slow each other down."""
        with contextlib.ExitStack() as held:
            with self.queue_time.waiting():
                if self.allocation:
                    self.allocation.wait(on_tick)
                held.enter_context(exclusive(spec.cluster, on_tick))
            yield

    def another(self, _: Callable[[], None] = lambda: None) -> "LocalLauncher":
        """Return a launcher whose trials can run at the same time as those of this one."""
        made = LocalLauncher(
            self._runner, study=self._study, grace_s=self._grace_s, warm=self._warm, hosts=self.hosts, allocation=self.allocation
        )
        made._device_bytes = self._device_bytes
        return made

    def start_early(self, folder: Path, spec: TrialSpec, _: Callable[[], None]) -> "LocalTrial":
        """Start a trial while the ranks of another launcher hold the devices; raises OSError as `start` does."""
        return self.start(folder, spec, shared=True)

    def start(self, folder: Path, spec: TrialSpec, seat: Seat | None = None, *, shared: bool = False) -> "LocalTrial":
        """Start the trial in `folder`, or this host's part of it, once no process of the previous trial is left.

        Args:
            seat: This host's part; None: the whole trial.
            shared: Another launcher's trial holds the devices, so their memory need not be free.

        Raises:
            OSError: the host refuses a process, a file or a control group. Nothing of the trial is left.
        """
        parent = self._ready_parent()
        parent.end_ranks(self._grace_s)
        if spec.cluster.on_cuda and not shared:
            self._check_devices()
        self._launches += 1
        seat = seat or Seat(rendezvous=f"file://{self._folder / f'rendezvous-{self._launches}'}", port=placement.free_port())
        groups = placement.cpu_groups(self._runner, spec, seat) if self._can_limit(spec) else None
        leftovers = contextlib.ExitStack()
        locks = ExtensionLocks(spec.environment, spec.command.argv if spec.command else (), since=time.time())
        leftovers.callback(locks.remove)
        if groups is not None:
            leftovers.callback(groups.close)
        folder = folder.resolve()
        words = logs.folder(folder, seat.index)
        try:
            words.mkdir(exist_ok=True)
            places = placement.place(self._runner, spec, folder, seat, warm=self._warm, groups=groups)
            parent.start(self._launches, folder, places, words)
        except OSError:
            leftovers.close()
            raise
        return LocalTrial(
            self,
            parent,
            folder,
            words,
            launch_id=self._launches,
            size=len(places),
            locks=locks,
            leftovers=leftovers,
            grace_s=self._runner.grace_s,
        )

    def drop_parent(self) -> None:
        """End the parent of the ranks and all processes below it; the next trial gets a new one."""
        if self._parent is not None:
            parent, self._parent = self._parent, None
            parent.close()

    def close(self) -> None:
        """End every process that this launcher started, and remove its temporary folder."""
        self.drop_parent()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ready_parent(self) -> ForkServer:
        if self._parent is not None and self._parent.ended():
            self.drop_parent()
        if self._parent is None:
            self._parent = ForkServer(
                self._runner.program if self._warm else None,
                environment=placement.environment(self._runner, self._study, packages=self._folder / "packages"),
                grace_s=self._grace_s,
                log=self._folder / "parent.log",
                python=str(self._runner.python),
            )
        return self._parent

    def _can_limit(self, spec: TrialSpec) -> bool:
        """Return False if the cluster requires CPU quotas and they do not work here; warn once."""
        if spec.cluster.cpus_per_device is not None and self._quotas_lacking is None:
            self._quotas_lacking = quotas_lacking()
            if self._quotas_lacking:
                _log.warning("no CPU quotas: %s; the kernel shares the cores among the ranks", self._quotas_lacking)
        return not self._quotas_lacking

    def _check_devices(self) -> None:
        if self._device_bytes is None:
            self._device_bytes = devices.used_bytes()
        devices.wait_until_released(self._device_bytes)


class LocalTrial:
    """Runs the processes of a trial on this host."""

    def __init__(
        self,
        launcher: LocalLauncher,
        parent: ForkServer,
        folder: Path,
        words: Path,
        *,
        launch_id: int,
        size: int,
        locks: ExtensionLocks,
        leftovers: contextlib.ExitStack,
        grace_s: float | None,
    ) -> None:
        self._launcher = launcher
        self._parent = parent
        self._launch_id = launch_id
        self._folder = folder
        self._words = words
        self._size = size
        self._locks = locks
        self._leftovers = leftovers
        self._grace_s = grace_s
        self._started = False
        self._exits: list[ProcessExit] = []
        self._failure: Exit | None = None
        self._linger_until = math.inf
        self._trim_at = 0.0

    def poll(self) -> Exit | None:
        """Return how its processes ended, or None while they run.

        The processes are all of them, or the first that ended abnormally and those that followed until the reason was reported.
        """
        exit, allocation = self._poll(), self._launcher.allocation
        if exit and allocation and (exit.failure or exit.first_abnormal):
            return dataclasses.replace(exit, revoked=allocation.revoked())
        return exit

    def end(self, grace_s: float) -> None:
        """End the processes that are left, and return when none is; the runner's own grace period, if any, replaces `grace_s`."""
        self._poll()
        self._locks.note()
        if self._started and not self._parent.ended():
            self._parent.end_ranks(grace_s if self._grace_s is None else self._grace_s)
        if not self._started or not self._all_confirmed():
            self._launcher.drop_parent()  # the parent may still be about to start ranks, or is itself stopped or dead
        self._leftovers.close()
        self._trim_logs()

    def _poll(self) -> Exit | None:
        how = self._parent.ended()  # checked first, so that all events that it sent before its end are read below
        for event in self._parent.events():
            self._hear(event)
        if time.monotonic() > self._trim_at:  # each look opens both files, which may be on a file system of many hosts
            self._trim_at = time.monotonic() + TRIM_S
            self._trim_logs(over_bytes=logs.RUNAWAY_BYTES)
        if self._failure is None and how:
            self._failure = Exit(processes=tuple(self._exits), failure=how, traceback=self._parent.last_words())
        if self._failure is not None:
            return self._failure
        return Exit(processes=tuple(self._exits)) if self._is_over() else None

    def _all_confirmed(self) -> bool:
        """Return True if the parent of the ranks has reported the end of all ranks, and can run the next trial."""
        deadline = time.monotonic() + CONFIRM_S
        while len(self._exits) < self._size and not self._parent.ended() and time.monotonic() < deadline:
            time.sleep(0.002)
            self._poll()
        return len(self._exits) == self._size and not self._parent.ended()

    def _is_over(self) -> bool:
        told_or_silent = (self._folder / REPORT).exists() or time.monotonic() > self._linger_until
        return len(self._exits) == self._size or (self._linger_until < math.inf and told_or_silent)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "failed":
            self._failure = Exit(failure=event["cause"], traceback=event["traceback"])
        elif event["launch_id"] != self._launch_id:
            return  # a rank of an earlier trial, which we ended ourselves
        elif event["event"] == "started":
            self._started = True
        else:
            ended = ProcessExit(rank=event["rank"], code=event["code"], signal=event["signal"], time=event["time"])
            self._exits.append(ended)
            if ended.abnormal:
                self._linger_until = min(self._linger_until, time.monotonic() + LINGER_S)

    def _trim_logs(self, over_bytes: int = 0) -> None:
        for name in (logs.STDOUT, logs.STDERR):
            logs.trim(self._words / name, over_bytes=over_bytes)
