"""A real Slurm on this one machine: a slurmctld and a slurmd per node, in one folder, with ports and cgroups of their own.

Made for Debian's packages (22.05). There is no accounting and no authentication; nodes have more CPUs and memory than the machine, and
GPUs that are copies of /dev/null. What users meet is real: `sbatch`, `srun`, `scontrol`, queues, preemption, steps, signals.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from oppa.trials import processes
from tests.ending import end
from tests.ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
FREEZER = Path("/sys/fs/cgroup/freezer")
KILL_WAIT_S = 3
"""Seconds between SIGTERM and SIGKILL when a job is cancelled or preempted."""
REQUEUE_S = 5
"""Seconds that a requeued job waits before it may run again; the least that Slurm allows."""
T = TypeVar("T")

SETTINGS = """\
AuthType=auth/none
AuthInfo=cred_expire={requeue_s}
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait={kill_wait_s}
ReturnToService=2"""
PARTITIONS = """\
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=2 MaxTime=10
"""


class Allocation(NamedTuple):
    """Names a job that only holds its nodes, and the environment of a program that starts inside of it."""

    job: str
    environment: dict[str, str]


def slurm_lacking() -> str:
    """Return why Slurm cannot run here; empty if it can."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm slurm-client munge"
    return "" if os.geteuid() == 0 else "only root can start slurmd"


def tracking_lacking() -> str:
    """Return why Slurm cannot find every process of a step here; empty if it can."""
    return "" if os.access(FREEZER / "release_agent", os.W_OK) else f"no writable cgroups (v1) in {FREEZER}"


def until(condition: Callable[[], T], explain: Callable[[], str] = str, timeout_s: float = 30) -> T:
    """Return what the condition returns once it is true; fail if that never comes."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"this never happened\n{explain()}"
        time.sleep(0.05)
    return found


class SlurmCluster:
    """Partitions `low` (the default) and `high`, which preempts it; both have all nodes."""

    def __init__(self, folder: Path, *, nodes: int = 2, cpus: int = 8, memory_mib: int = 16_000, gpus: int = 4) -> None:
        self._folder = folder
        self._port, *self._node_ports = free_ports(1 + nodes)
        # The cgroups are named after the nodes: with such names another Slurm on this machine has others.
        self.nodes = tuple(f"n{self._port}-{index}" for index in range(1, nodes + 1))
        self.cpus, self.memory_mib, self.gpus = cpus, memory_mib, gpus
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment = {**inherited, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "SlurmCluster":
        try:
            self._configure()
            self._start("slurmctld", "-i")
            for node in self.nodes:
                self._start("slurmd", "-N", node)
            until(self._answers, self._explain)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *argv: str, check: bool = True, script: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command as a user on a login node runs it."""
        done = subprocess.run(argv, env=self.environment, input=script, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"{argv}: exit code {done.returncode}\n{done.stderr}"
        return done

    def submit(self, script: str, *options: str) -> str:
        """The id of a job that runs this shell script on its first node."""
        words = ["--parsable", f"--output={self._folder}/%j.out", "--open-mode=append", *options]
        return self.run("sbatch", *words, script=f"#!/bin/bash\n{script}\n").stdout.strip()

    def output(self, job: str) -> str:
        """Return what the script has printed so far, in all its runs."""
        path = self._folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """Return what `scontrol` shows of a job, which stays for five minutes after its end."""
        line = self.run("scontrol", "show", "job", "--oneliner", job).stdout.strip()
        return dict(field.split("=", 1) for field in re.split(r"\s+(?=[A-Z][\w/:]*=)", line))

    def jobs(self) -> set[str]:
        """All that wait, run, or are about to end."""
        return set(self.run("squeue", "--noheader", "--format=%A").stdout.split())

    def holding(self) -> set[str]:
        """All jobs that oppa has requested, also those that have ended within five minutes."""
        listed = self.run("scontrol", "show", "job", "--oneliner").stdout.splitlines()
        return {line.partition(" ")[0].removeprefix("JobId=") for line in listed if " JobName=oppa-" in line}

    def wait_for(self, job: str, *states: str, timeout_s: float = 30) -> dict[str, str]:
        """Return what `scontrol` shows of the job once it is in one of these states."""

        def arrived() -> dict[str, str]:
            shown = self.job(job)
            return shown if shown["JobState"] in states else {}

        return until(arrived, lambda: f"{self.job(job)}\n{self.output(job)}\n{self._explain()}", timeout_s)

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs, and wait until nothing of them is left; one that is over may be among them."""
        if jobs:
            self.run("scancel", *jobs, check=False)
            until(lambda: not self.jobs() & set(jobs), self._explain)

    def wait_until_idle(self) -> None:
        """Every node is free."""
        shown = ("sinfo", "--noheader", "--Node", "--partition=low", "--format=%T")
        until(lambda: self.run(*shown).stdout.split() == ["idle"] * len(self.nodes), self._explain)

    def lose(self, node: str) -> None:
        """It dies with all that runs on it, and Slurm notices at once."""
        self._daemons[node].kill()
        self._daemons[node].wait()
        processes.end(lambda: processes.tagged(lambda facts: self._is_ours(facts) and facts.get("SLURMD_NODENAME") == node), 0)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def mend(self, node: str) -> None:
        """It is back."""
        if self._daemons[node].poll() is not None:
            self._start("slurmd", "-N", node)
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    @contextlib.contextmanager
    def allocation(self, *options: str, nodes: int = 2) -> Iterator[Allocation]:
        """Nodes that are held as long as this lasts, by a job that does nothing."""
        job = self.submit("env -0; exec sleep 600", f"--nodes={nodes}", "--ntasks-per-node=1", *options)
        try:
            until(lambda: self.output(job).endswith("\0"), lambda: f"{self.job(job)}\n{self._explain()}")
            said = self.output(job).rstrip("\0").split("\0")
            yield Allocation(job, dict(item.split("=", 1) for item in said))
        finally:
            self.cancel(job)

    def close(self) -> None:
        """End all jobs, then the daemons, then whatever is left, and remove the cgroups."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel(*self.jobs())
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            end(daemon)
        processes.end(lambda: processes.tagged(self._is_ours), 1)
        remove_groups(self._groups())

    def _configure(self) -> None:
        for name in ("state", "log", "gpus"):
            (self._folder / name).mkdir()
        for index in range(self.gpus):
            os.mknod(self._folder / "gpus" / f"gpu{index}", 0o666 | 0o020000, os.makedev(1, 3))
        host = os.uname().nodename.partition(".")[0]
        settings = {"SlurmctldHost": f"{host}(127.0.0.1)", "SlurmctldPort": self._port, "ClusterName": f"oppa{self._port}"}
        tracking = "linuxproc" if tracking_lacking() else "cgroup"
        general = SETTINGS.format(folder=self._folder, tracking=tracking, kill_wait_s=KILL_WAIT_S, requeue_s=REQUEUE_S)
        # Each node has an address of its own, all on this machine.
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.{index} Port={port} CPUs={self.cpus} RealMemory={self.memory_mib}"
            f" Gres=gpu:h100:{self.gpus}"
            for index, (node, port) in enumerate(zip(self.nodes, self._node_ports, strict=True), start=1)
        ]
        lines = [general, *(f"{name}={value}" for name, value in settings.items()), *nodes, PARTITIONS]
        (self._folder / "slurm.conf").write_text("\n".join(lines))
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self._folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={self._folder}/gpus/gpu[0-{self.gpus - 1}]\n")

    def _start(self, program: str, *options: str) -> None:
        """A daemon that ends with us, should we be killed."""
        command = ["setpriv", "--pdeathsig", "KILL", _find(program) or program, "-D", *options]
        with (self._folder / "log" / f"{program}{options[-1]}").open("ab") as log:
            self._daemons[options[-1]] = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _explain(self) -> str:
        logs = sorted((self._folder / "log").iterdir())
        return "\n".join(f"{path.name}: {line}" for path in logs for line in path.read_text().splitlines()[-10:])

    def _groups(self) -> list[Path]:
        """Our cgroups, the innermost first."""
        return sorted((path for node in self.nodes for path in FREEZER.glob(f"slurm_{node}/**/")), reverse=True)

    def _is_ours(self, environment: Mapping[str, str]) -> bool:
        return environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def remove_groups(groups: list[Path]) -> None:
    """Remove cgroups, the innermost first; what hides in them has forgotten its environment."""
    for group in groups:
        (group / "freezer.state").write_text("THAWED")  # a killed daemon leaves frozen processes, which no signal ends
    for group in groups:
        until(lambda: not _killed(group), lambda: f"{group} has {_killed(group)}", timeout_s=10)  # noqa: B023 (called at once)
        group.rmdir()


def _killed(group: Path) -> list[str]:
    """Kill the processes of a cgroup, and return their numbers."""
    held = (group / "cgroup.procs").read_text().split()
    for pid in held:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return held
