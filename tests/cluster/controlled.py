"""`oppa cluster run` on a spool with one job, `elastic`, whose hosts have one device each."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from oppa.training.run import ledger
from tests.ending import end
from tests.launchers.slurm_cluster import SlurmCluster, until


class Controlled:
    """Runs `oppa cluster run` on a spool."""

    def __init__(self, spool: Path, slurm: SlurmCluster, *words: str) -> None:
        self.spool, self._slurm = spool, slurm
        command = [sys.executable, "-m", "oppa", "cluster", "run", str(spool), "--check-s", "0.5", *words]
        self._command = command
        self._environment = {**slurm.environment, "OMP_NUM_THREADS": "1"}
        self.log = spool / "controller.log"
        self.process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the controller at once, and start another one."""
        self.process.kill()
        self.process.wait()
        self.process = self._begin()

    def lines(self) -> list[ledger.Line]:
        """Return the lines of the job's ledger."""
        run = self.spool / "elastic" / "run"
        return ledger.read(run) if (run / ledger.FILE).exists() else []

    def hosts(self) -> int:
        """Return the number of hosts of the newest step."""
        steps = [line for line in self.lines() if line["event"] == ledger.STEP]
        return hosts_of(steps[-1]) if steps else 0

    def reaches(self, hosts: int) -> None:
        """Wait until it trains on so many."""
        until(lambda: self.hosts() == hosts, lambda: f"{self.log.read_text()}\n{self._words()}", timeout_s=90)

    def _words(self) -> str:
        path = self.spool / "elastic" / "supervisor.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def end(self) -> None:
        """Nothing is left running."""
        self.process.terminate()
        end(self.process, grace_s=30)
        started = self.spool / "elastic" / "started.json"
        if started.exists():
            pid = int(json.loads(started.read_text())["process"].split(":")[0])
            for number in (signal.SIGINT, signal.SIGINT):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
                time.sleep(1)


def scaled(
    spool: Path,
    slurm: SlurmCluster,
    *,
    timeout_s: float,
    most: int = 4,
    at_most: Callable[[Controlled], None] = lambda _: None,
    hurry: Callable[[], None] = lambda: None,
) -> Controlled:
    """Train the job on one, two, four and one hosts, as other jobs depart and one arrives, and to its end there.

    Args:
        most: Most hosts on which it trains: four, or two.
        at_most: Is called once it trains on these.
        hurry: Is called before the rest.
    """
    other, another = slurm.submit("sleep 600", "--nodes=2", "--exclusive"), slurm.submit("sleep 600", "--nodes=1", "--exclusive")
    for each in (other, another):
        slurm.wait_for(each, "RUNNING")
    controlled = Controlled(spool, slurm, "--set", "scaling.threshold=0")
    try:
        controlled.reaches(1)
        slurm.cancel(another)
        controlled.reaches(2)
        if most == 4:
            slurm.cancel(other)
            controlled.reaches(4)
        at_most(controlled)
        comer = slurm.submit("sleep 600", f"--nodes={most - 1}", "--exclusive")
        slurm.wait_for(comer, "RUNNING", timeout_s=60)
        controlled.reaches(1)
        hurry()
        assert controlled.process.wait(timeout=timeout_s) == 0, controlled.log.read_text()
    finally:
        controlled.end()
        slurm.cancel(*slurm.jobs())
    return controlled


def grown_without_a_node(spool: Path, slurm: SlurmCluster, chance: random.Random) -> Controlled:
    """Lose a node at some moment of the change from two hosts to four, and mend it once the job trains on the rest."""
    other = slurm.submit("sleep 600", "--nodes=2", "--exclusive")
    slurm.wait_for(other, "RUNNING")
    controlled = Controlled(spool, slurm, "--set", "scaling.threshold=0")
    decisions, lost = controlled.spool / "decisions.jsonl", chance.choice(slurm.nodes)
    try:
        controlled.reaches(2)
        slurm.cancel(other)
        until(lambda: len(decisions.read_text().splitlines()) >= 2, controlled.log.read_text, timeout_s=60)
        time.sleep(chance.uniform(0.0, 6.0))
        slurm.lose(lost)
        steps = len(controlled.lines())
        until(lambda: len(controlled.lines()) > steps + 20 and controlled.hosts() < 4, controlled.log.read_text, timeout_s=120)
        slurm.mend(lost)
        assert controlled.process.wait(timeout=240) == 0, controlled.log.read_text()
    finally:
        controlled.end()
        slurm.mend(lost)
        slurm.cancel(*slurm.jobs())
    return controlled


def hosts_of(step: ledger.Line) -> int:
    """Return the number of hosts on which a step was taken."""
    dp, pp = (int(each) for each in re.findall(r"[dp]p(\d+)", step["configuration"]))
    return dp * pp


def losses(lines: list[ledger.Line]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in ledger.standing(lines) if line["event"] == ledger.STEP}
