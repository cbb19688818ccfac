"""Run one host's part of every trial of a multi-host job, with a local launcher. This program is called the agent.

It reads commands from stdin and writes events to stdout, as one short JSON object per line. Longer data goes through the trial folder,
because srun would interleave long lines of several hosts. All hosts receive the same lines, and each answers with its own number:

    <- {"do": "port", "launch_id": 1}  host 0: find a free port for the rendezvous
    <- {"do": "start", "launch_id": 1, "folder": ..., "master": ..., "port": ...}  start the trial in `folder`; `launch_id` counts launches,
       and `shared` is true while the ranks of another launcher hold the devices
    <- {"do": "end", "launch_id": 1, "grace_s": 5}  end its remaining processes
    -> {"event": "ready", "host": 0, "name": ...}
    -> {"event": "port", "host": 0, "launch_id": 1, "port": ...}
    -> {"event": "exit", "host": 0, "launch_id": 1}  its processes on this host have ended; `exit0.json` has the facts
    -> {"event": "ended", "host": 0, "launch_id": 1}  no process is left on this host
    -> {"event": "alive", "host": 0, "launch_id": 1}  at its start, then every few seconds while it runs

When stdin closes, the agent ends everything that it has started, and itself.

A command may arrive twice, late or never. A launch starts once, and not after a later one or its own end. `end` ends no later launch.
"""

import contextlib
import dataclasses
import functools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oppa.launchers import network
from oppa.launchers.event_line import LEAVING, write_event
from oppa.trials import processes
from oppa.trials.launcher import Exit
from oppa.trials.local import LocalLauncher, LocalTrial
from oppa.trials.orphans import end_orphans
from oppa.trials.placement import Seat, free_port
from oppa.trials.runner import load_runner
from oppa.trials.trial_folder import TrialSpec, write_json
from oppa.trials.verdict import kernel_oom_kills

POLL_S = 0.01
ALIVE_S = 2.0
"""Seconds between two `alive` events. They are needed because srun continues when a host dies."""
HOST = "OPPA_HOST"
"""Environment variable with the number of this host in the job, for launchers other than Slurm."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """Holds the parameters of all agents of a job."""

    runner: str
    """Folder of the runner."""
    runs: bool
    """True if the runner executes training runs instead of trials."""
    study: str
    """Id of the study, which tags all processes."""
    hosts: int
    """Number of hosts of the job."""
    grace_s: float
    first: int = 0
    """Number of the first host of the command; the hosts before it belong to other commands."""

    @property
    def argv(self) -> list[str]:
        """Return the command line of an agent, with this installation of oppa."""
        return [sys.executable, "-P", "-c", processes.program("oppa.launchers.agent"), json.dumps(dataclasses.asdict(self))]


class Agent:
    """Runs one host's part of every trial."""

    def __init__(self, task: AgentTask, launcher: LocalLauncher, host: int) -> None:
        self._task, self._launcher, self._host = task, launcher, host
        self._launch_id = 0
        self._folder = Path()
        self._trial: LocalTrial | None = None
        """The present trial, until the tuner ends it."""
        self._exited = False
        self._oom_kills = 0
        self._alive_at = 0.0

    def serve(self) -> None:
        """Execute commands until stdin closes."""
        self._launcher.prepare()
        self._tell("ready", name=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
        for line in self._lines():
            if line:
                self._do(**json.loads(line))
            self._look()

    def _do(
        self,
        *,
        do: str,
        launch_id: int = 0,
        folder: str = "",
        master: str = "",
        peer: str = "",
        port: int = 0,
        grace_s: float = 0.0,
        shared: bool = False,
    ) -> None:
        if do == "start" and launch_id > self._launch_id:
            self._end(0.0)  # the command that ends the launch before was lost
            self._launch_id, self._folder, self._exited = launch_id, Path(folder), False
            self._oom_kills = kernel_oom_kills()
            self._start(master, peer, port, shared=shared)
            self._alive_at = 0.0  # so that `_look` reports at once
        elif do == "end":
            if launch_id >= self._launch_id:
                self._end(grace_s)
                self._launch_id = launch_id
            self._tell("ended", launch_id=launch_id)
        elif do == "port" and self._host == 0:
            self._tell("port", launch_id=launch_id, port=free_port())

    def _end(self, grace_s: float) -> None:
        if self._trial is not None:
            self._trial.end(grace_s)
        self._trial = None

    def _start(self, master: str, peer: str, port: int, *, shared: bool) -> None:
        # a host's own name may lead to its loopback device, so the first one asks for the way to another
        interface = network.interface_towards(peer if peer and self._host == 0 else master)
        rendezvous = f"tcp://{master}:{port}"
        seat = Seat(index=self._host, hosts=self._task.hosts, rendezvous=rendezvous, master=master, port=port, interface=interface)
        try:
            self._trial = self._launcher.start(self._folder, TrialSpec.read(self._folder), seat, shared=shared)
        except OSError as error:
            self._tell_exit(Exit(failure=str(error)))

    def _look(self) -> None:
        """Send `alive` events, and report the end of the trial once. The tuner then sends `end` for its remaining processes."""
        if time.monotonic() > self._alive_at + ALIVE_S:
            self._alive_at = time.monotonic()
            self._tell("alive", launch_id=self._launch_id)
        if self._trial is not None and not self._exited and (exit := self._trial.poll()) is not None:
            self._tell_exit(exit)

    def _tell_exit(self, exit: Exit) -> None:
        self._exited = True
        exit = dataclasses.replace(exit, kernel_oom=kernel_oom_kills() > self._oom_kills)
        with contextlib.suppress(OSError):  # the trial may have put a directory there, or removed its folder; the tuner finds that
            write_json(exit_file(self._folder, self._host), dataclasses.asdict(exit))
        self._tell("exit", launch_id=self._launch_id)

    def _tell(self, event: str, **facts: Any) -> None:
        write_event(event, host=self._host, **facts)

    def _lines(self) -> Iterator[bytes]:
        """Yield lines as they arrive. While a trial runs, also yield empty lines, so that the trial is polled."""
        rest = b""
        while True:
            waiting = POLL_S if self._trial is not None and not self._exited else None
            if not select.select([0], [], [], waiting)[0]:
                yield b""
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def exit_file(trial: Path, host: int) -> Path:
    """Return the file in which a host reports how a trial's processes ended there."""
    return trial / f"exit{host}.json"


def main() -> None:
    """Serve as the agent that the command line and the environment describe."""
    task = AgentTask(**json.loads(sys.argv[1]))
    host = task.first + int(os.environ.get(HOST) or os.environ["SLURM_PROCID"])
    signal.signal(signal.SIGTERM, functools.partial(_leave, host))
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm sends those of `--signal` to every step
        signal.signal(warning, lambda *_: None)
    processes.own_children()
    end_orphans(task.study)
    runner = load_runner(Path(task.runner))
    with LocalLauncher(runner.for_runs() if task.runs else runner, study=task.study, grace_s=task.grace_s) as launcher:
        Agent(task, launcher, host).serve()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all processes of this agent are ending already


def _leave(host: int, *_: object) -> None:
    """Handle the first SIGTERM: report it, and exit, which ends all processes of this agent.

    Slurm sends the signal when it preempts the job, which still counts as running then. The tuner reads no events of agents that it ends.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps({"event": LEAVING, "host": host}) + "\n").encode())  # stdout's buffer may be in use
    sys.exit(1)
