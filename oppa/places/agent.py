"""What runs on each host of a job that has several: the launcher of that host, told over stdin what to do, telling on stdout what happens.

One short JSON object per line (srun mixes longer lines of several hosts); what is long is handed in through the trial's folder. All
hosts of a job hear the same lines, and each answers with its own number:

    <- {"do": "port"}                                                            host 0: find a port where the ranks can meet
    <- {"do": "start", "gang": 1, "folder": ..., "master": ..., "port": ...}     begin the trial that lies in `folder`
    <- {"do": "end", "gang": 1, "grace_s": 5}                                    end what is left of it
    -> {"event": "ready", "host": 0, "name": ...}
    -> {"event": "port", "host": 0, "port": ...}
    -> {"event": "exit", "host": 0, "gang": 1}                                   its processes on this host have ended: see `exit0.json`
    -> {"event": "ended", "host": 0, "gang": 1}
    -> {"event": "alive", "host": 0, "gang": 1}                                  once it has begun, then every few seconds while it runs

When stdin closes, it ends everything that it has started, and itself.
"""

import dataclasses
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

from oppa.places import network
from oppa.trials import processes
from oppa.trials.launcher import Exit
from oppa.trials.local import LocalLauncher, LocalTrial
from oppa.trials.placement import Seat, free_port
from oppa.trials.runner import load_runner
from oppa.trials.sweep import sweep
from oppa.trials.verdict import kernel_oom_kills
from oppa.trials.wire import TrialSpec, write_json

POLL_S = 0.01
ALIVE_S = 2.0
"""How often a host says that it is there: srun goes on without one that dies."""
HOST = "OPPA_HOST"
"""Says which of the job's hosts this is, where the cluster's engine does not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all agents of a job are started with."""

    runner: str
    """Its folder."""
    runs: bool
    """Whether it trains runs, or trials."""
    study: str
    hosts: int
    grace_s: float

    @property
    def argv(self) -> list[str]:
        """The command line of an agent: this oppa, wherever it is started."""
        return [sys.executable, "-P", "-c", processes.program("oppa.places.agent"), json.dumps(dataclasses.asdict(self))]


class Agent:
    """One host's part in every trial."""

    def __init__(self, task: Task, launcher: LocalLauncher, host: int) -> None:
        self._task, self._launcher, self._host = task, launcher, host
        self._gang = 0
        self._folder = Path()
        self._trial: LocalTrial | None = None
        """Until we are asked to end it."""
        self._exited = False
        self._oom_kills = 0
        self._alive_at = 0.0

    def serve(self) -> None:
        """Until stdin closes."""
        self._launcher.prepare()
        self._tell("ready", name=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
        for line in self._lines():
            if line:
                self._do(**json.loads(line))
            self._look()

    def _do(self, do: str, gang: int = 0, folder: str = "", master: str = "", port: int = 0, grace_s: float = 0.0) -> None:
        if do == "start":
            self._gang, self._folder, self._exited = gang, Path(folder), False
            self._oom_kills = kernel_oom_kills()
            self._start(master, port)
            self._alive_at = 0.0  # told at once
        elif do == "end":
            if self._trial is not None:
                self._trial.end(grace_s)
            self._trial = None
            self._tell("ended", gang=gang)
        elif self._host == 0:
            self._tell("port", port=free_port())

    def _start(self, master: str, port: int) -> None:
        interface = network.interface_towards(master)
        rendezvous = f"tcp://{master}:{port}"
        seat = Seat(index=self._host, hosts=self._task.hosts, rendezvous=rendezvous, master=master, port=port, interface=interface)
        try:
            self._trial = self._launcher.start(self._folder, TrialSpec.read(self._folder), seat)
        except OSError as error:
            self._tell_exit(Exit(failure=str(error)))

    def _look(self) -> None:
        """Tell once how the trial ended; what is left of it stays until we are asked to end it."""
        if time.monotonic() > self._alive_at + ALIVE_S:
            self._alive_at = time.monotonic()
            self._tell("alive", gang=self._gang)
        if self._trial is not None and not self._exited and (exit := self._trial.poll()) is not None:
            self._tell_exit(exit)

    def _tell_exit(self, exit: Exit) -> None:
        self._exited = True
        exit = dataclasses.replace(exit, kernel_oom=kernel_oom_kills() > self._oom_kills)
        write_json(exit_file(self._folder, self._host), dataclasses.asdict(exit))
        self._tell("exit", gang=self._gang)

    def _tell(self, event: str, **facts: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, "host": self._host, **facts}) + "\n")
        sys.stdout.flush()

    def _lines(self) -> Iterator[bytes]:
        """Lines as they come; while a trial runs an empty one now and then, so that it is looked at."""
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
    """Where a host hands in how a trial's processes on it ended."""
    return trial / f"exit{host}.json"


def main() -> None:
    """Serve as the agent that the command line and the environment describe."""
    signal.signal(signal.SIGTERM, _leave)
    task = Task(**json.loads(sys.argv[1]))
    host = int(os.environ.get(HOST) or os.environ["SLURM_PROCID"])
    sweep(task.study)
    runner = load_runner(Path(task.runner))
    with LocalLauncher(runner.for_runs() if task.runs else runner, study=task.study, grace_s=task.grace_s) as launcher:
        Agent(task, launcher, host).serve()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what we started is being ended already


def _leave(*_: object) -> None:
    """Asked to end, once: end what we started, and then ourselves."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)
