"""Use Slurm allocations as host pools. State comes from `scontrol`, which needs no accounting."""

import contextlib
import copy
import dataclasses
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from oppa.errors import EnvironmentLackingError
from oppa.launchers.agent import AgentTask
from oppa.problem.cluster import Cluster
from oppa.trials.trial_folder import TrialSpec

STEP_PATIENCE_S = 30
"""Seconds that a step waits for resources of another step before Slurm refuses it."""
POLL_S = 2.0
"""Seconds between two queries of a job while the tuner waits for it."""
ANSWER_S = 120
"""Seconds in which a Slurm command must answer."""
GONE_S = 1.5
"""Seconds that a cancelled step may take to end."""
SPECIAL_STEPS = 0xFFFFFFF0
"""Smallest step number that Slurm reserves for itself: batch, extern, interactive."""
KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_SACK", "SLURM_CLUSTERS", "SLURM_MPI_TYPE")
"""Beginnings of variables that a step of oppa inherits: how Slurm is reached, and nothing of the enclosing job's own request."""
FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
"""Beginnings of variables by which users set defaults of Slurm's commands: which jobs and nodes they list or cancel, and how."""
NEVER_GRANTED = {
    "AccountNotAllowed",
    "AssociationTimeLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSNotAllowed",
    "QOSTimeLimit",
    "ReservationDeleted",
}
"""Pending reasons that never resolve."""
HELD = {"JobHeldAdmin", "JobHeldUser", "job_requeued_in_held_state"}
"""Pending reasons of a job that somebody has to release."""
NEVER_GRANTED_S = 4.0
"""Seconds that such a reason must last, because Slurm may report one for a second right after submission."""
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
"""Final states of a job."""
FORGOTTEN, SILENT = "FORGOTTEN", "SILENT"
"""States that oppa adds: Slurm has removed the record of the job, and Slurm does not answer."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """Describes the resources that an allocation has on one host."""

    name: str
    address: str
    cpus: int
    gpus: int
    memory_mib: int
    """Memory limit in MiB; 0 for no limit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    """Holds the state of a job (`RUNNING`, `PENDING`, ...), and the reason why it does not run."""

    name: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Return True if the job will not run again."""
        return self.name in ENDED or self.name == FORGOTTEN

    def __str__(self) -> str:
        return self.name if self.reason in ("", "None") else f"{self.name} ({self.reason})"


def srun(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the first words of an srun command that names its job, hosts and resources itself.

    srun reads the enclosing job's or step's request from SLURM_ variables, such as SLURM_TRES_PER_TASK, SLURM_CPU_BIND or SLURM_EXPORT_ENV.
    It would repeat that request, or refuse it together with other options.
    """
    inherited = sorted(name for name in environment if name.startswith(("SLURM_", "SRUN_")) and not name.startswith(KEPT))
    return ["env", *(f"--unset={name}" for name in inherited), "srun", "--export=ALL"]


def own_job() -> str:
    """Return the id of the job whose allocation this process runs in; empty if there is none."""
    return os.environ.get("SLURM_JOB_ID", "")


def state(job: str) -> SlurmState:
    """Return the state of a job; FORGOTTEN or SILENT if Slurm does not report it."""
    try:
        facts = _facts(ask("scontrol", "show", "job", "--oneliner", job))
    except EnvironmentLackingError as error:
        return SlurmState(name=FORGOTTEN if "Invalid job id" in error.message else SILENT, reason=error.message)
    return SlurmState(name=facts["JobState"], reason=facts.get("Reason", ""))


def revoked(job: str) -> str:
    """Return why the hosts of a job were withdrawn: it was preempted, requeued, cancelled, or timed out; empty while it runs."""
    deadline = time.monotonic() + GONE_S
    while (now := state(job)).name == "COMPLETING" and time.monotonic() < deadline:  # the final state follows soon
        time.sleep(0.2)
    return "" if now.name in ("RUNNING", SILENT) else f"Slurm's job {job} is {now}"


def nodes(job: str, *, without: str = "") -> tuple[SlurmNode, ...]:
    """Return the hosts of a running job's allocation, in Slurm's order.

    Args:
        job: Id of the job.
        without: Hosts that are left out, as Slurm lists them: `n[1-3],n7`.

    Raises:
        EnvironmentLackingError: Slurm does not answer, or has no such job.
    """
    detailed = ask("scontrol", "show", "job", "--details", "--oneliner", job)
    shares = {
        name: (_count(cpus), _gpus(gres), int(memory))
        for listed, cpus, memory, gres in re.findall(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", detailed)
        for name in hostnames(listed)
    }
    excluded, listed = hostnames(without), _facts(detailed)["NodeList"]
    addresses = _addresses(listed)
    return tuple(
        SlurmNode(name=name, address=addresses.get(name, name), cpus=shares[name][0], gpus=shares[name][1], memory_mib=shares[name][2])
        for name in hostnames(listed)
        if name not in excluded
    )


def first_address(listed: str) -> str:
    """Return the address of the first host in a list as Slurm writes it: `n[1-3],n7`."""
    name = hostnames(listed)[0]
    return _addresses(name).get(name, name)


def hostnames(listed: str) -> list[str]:
    """Return the names in a list of hosts as Slurm writes it: `n[1-3],n7`; none if it is empty."""
    return ask("scontrol", "show", "hostnames", listed).split() if listed else []


def require_fitting(cluster: Cluster, allocated: tuple[SlurmNode, ...], job: str) -> None:
    """Refuse a job that needs more than the allocation has.

    Raises:
        EnvironmentLackingError: the allocation has too few hosts, CUDA devices or CPUs.
    """
    if cluster.hosts > len(allocated):
        message = f"this job needs {cluster.hosts} hosts; Slurm's job {job} has {len(allocated)}"
        raise EnvironmentLackingError(
            message, hint=f"request more (`--nodes={cluster.hosts}`), or set `hosts = {len(allocated)}` in [cluster]"
        )
    if room(cluster, allocated) == 0:
        kind, has = "CUDA devices" if cluster.on_cuda else "CPUs", min(_has(node, cluster) for node in allocated)
        message = f"this job needs {_needs(cluster)} {kind} on each host; Slurm's job {job} has {has}"
        fitting = f"set `devices_per_host = {has}` in [cluster]" if has else "state hosts without GPUs: `--set cluster.device=CPU`"
        raise EnvironmentLackingError(message, hint=f"request more (`--gpus-per-node`, `--cpus-per-task`), or {fitting}")


def room(cluster: Cluster, allocated: tuple[SlurmNode, ...]) -> int:
    """Return the number of parallel trials that fit on the smallest host, by its GPUs or its CPUs."""
    return min(_has(node, cluster) // _needs(cluster) for node in allocated)


def _needs(cluster: Cluster) -> int:
    """Return the GPUs or CPUs that a trial needs on each host."""
    return cluster.devices_per_host if cluster.on_cuda else max(1, math.ceil(sum(cluster.cpus)))


def _has(node: SlurmNode, cluster: Cluster) -> int:
    return node.gpus if cluster.on_cuda else node.cpus


class SlurmHosts:
    """Provides the hosts of an allocation to one of `slots` parallel tuners, as a host pool. Tuners share hosts if there are too few."""

    def __init__(
        self,
        job: str,
        cluster: Cluster,
        allocated: tuple[SlurmNode, ...],
        *,
        slot: int = 0,
        slots: int = 1,
        without: str = "",
        binding: Sequence[str] = (),
    ) -> None:
        self._without, self._binding = without, binding
        self._job, self._cluster, self._slot, self._slots = job, cluster, slot, slots
        self._take(allocated)
        self._step = _step_name()
        self._overlapping = in_a_step()  # the enclosing step holds the devices that ours needs
        self._is_left = False
        """True if a step of ours outlived its cancellation."""

    def _take(self, allocated: tuple[SlurmNode, ...]) -> None:
        if len(allocated) < self._cluster.hosts:  # a host failed under `--no-kill`, or the job was requeued onto fewer
            require_fitting(self._cluster, allocated, self._job)
        groups = len(allocated) // self._cluster.hosts
        first = self._slot % groups * self._cluster.hosts
        self.nodes = allocated[first : first + self._cluster.hosts]
        self._sharing = -(-self._slots // groups)

    def another(self) -> "SlurmHosts":
        """Return a pool of the same hosts, whose steps share the devices with those of this pool."""
        made = copy.copy(self)
        made._step, made._overlapping, made._is_left = _step_name(), True, False
        return made

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the hosts."""
        return tuple(node.address for node in self.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the hosts."""
        return tuple(node.name for node in self.nodes)

    @contextlib.contextmanager
    def devices(self, _: TrialSpec, on_tick: Callable[[], None]) -> Iterator[None]:
        """Wait until the job runs, for example after a requeue. While it runs, Slurm reserves the hosts."""
        wait_until_running(self._job, on_tick)
        yield

    def commands(self, task: AgentTask) -> list[list[str]]:
        """Return an srun command that starts an agent on each present host of the job; a requeue may change the hosts."""
        self._take(nodes(self._job, without=self._without))
        self._is_left = self._is_left and bool(self._steps())
        # Slurm does not book the devices of a step that overlaps, so one on shared hosts waits for what is left instead.
        overlaps = self._overlapping or (self._is_left and self._sharing == 1)
        count, first = len(self.nodes), self.nodes[0]
        cuda = self._cluster.on_cuda
        words = [
            *(f"--jobid={self._job}", f"--job-name={self._step}", "--exact", f"--immediate={STEP_PATIENCE_S}"),
            *(f"--nodelist={','.join(node.name for node in self.nodes)}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
            f"--cpus-per-task={max(1, min(node.cpus for node in self.nodes) // self._sharing)}",
            f"--mem={first.memory_mib // self._sharing}M" if first.memory_mib and self._sharing > 1 else "--mem=0",
            f"--gpus-per-node={self._cluster.devices_per_host}" if cuda else "--gres=none",  # without it, a step takes all devices
            *self._binding,
            "--kill-on-bad-exit=0",
            *(["--overlap"] if overlaps else []),
        ]
        return [[*srun(), *words, *task.argv]]

    def on_first(self, argv: list[str]) -> list[str]:
        """Return a command for a separate step on the first host that takes no resources from other steps."""
        self._take(nodes(self._job, without=self._without))
        words = [
            *(f"--jobid={self._job}", f"--job-name={self._step}", f"--nodelist={self.nodes[0].name}", "--nodes=1", "--ntasks=1"),
            *("--overlap", "--cpus-per-task=1", "--mem=0", "--gres=none", "--unbuffered"),
        ]
        return [*srun(), *words, *argv]

    def revoked(self) -> str:
        """Return why the hosts were withdrawn; empty while the job runs."""
        return revoked(self._job)

    def kill(self) -> None:
        """Cancel our step, in case it has outlived its srun. Waiting is short, as Slurm cannot end a step on a dead node."""
        for step in self._steps():
            ask("scancel", step, lenient=True)
        deadline = time.monotonic() + GONE_S
        while (left := self._steps()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._is_left = bool(left)

    def _steps(self) -> list[str]:
        """Return the ids of our steps that Slurm reports as running."""
        listed = ask("squeue", "--steps", "--noheader", f"--jobs={self._job}", "--format=%i %j", lenient=True)
        named = (line.split(maxsplit=1) for line in listed.splitlines() if " " in line.strip())
        return [step for step, name in named if name.strip() == self._step]


def _step_name() -> str:
    return f"oppa-{os.urandom(4).hex()}"


def in_a_step() -> bool:
    """Return True if this process runs in a step that holds devices, unlike the batch step and interactive steps."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < SPECIAL_STEPS


def wait_until_running(job: str, on_tick: Callable[[], None]) -> None:
    """Return when the job runs; log why it does not run yet.

    Raises:
        EnvironmentLackingError: the job has ended, or waits for a reason that never resolves.
    """
    reported, since = SlurmState(name=""), time.monotonic()
    while (now := state(job)).name != "RUNNING":
        if now.has_ended:
            raise EnvironmentLackingError(
                f"Slurm's job {job} has ended: {now}", hint="run the same command again: the study keeps its trials"
            )
        if now.name == "PENDING" and now.reason in NEVER_GRANTED and now == reported and time.monotonic() > since + NEVER_GRANTED_S:
            raise EnvironmentLackingError(f"Slurm's job {job} can never start: {now.reason}", hint="request what the partition has")
        if now != reported:
            release = f"; `scontrol release {job}` lets it start" if now.reason in HELD else ""
            _log.warning("waiting for Slurm's job %s: %s%s", job, now, release)
            reported, since = now, time.monotonic()
        _wait(POLL_S, on_tick)


def ask(*argv: str, lenient: bool = False, script: str | None = None, errors: bool = False) -> str:
    """Return the output of a Slurm command; empty if it fails and `lenient` is True.

    Variables of the environment that filter or format the user's own queries, such as SQUEUE_USERS, have no effect.

    Args:
        script: Input of the command.
        errors: Append the error output, to which sbatch writes its estimates.

    Raises:
        EnvironmentLackingError: the command is not installed, fails (with its message), or does not answer.
    """
    if shutil.which(argv[0]) is None:
        raise EnvironmentLackingError(
            f"`{argv[0]}` is not installed", hint="run oppa on a host with Slurm's commands, or with `--set launcher.name=local`"
        )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FILTERS)}
    try:  # names and comments of other users may be in any encoding
        answer = subprocess.run(
            argv, input=script, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        if lenient:
            return ""
        raise EnvironmentLackingError(
            f"`{argv[0]}` has not answered in {ANSWER_S} s", hint=f"run `{shlex.join(argv)}` to see the error"
        ) from None
    if answer.returncode and not lenient:
        raise EnvironmentLackingError(f"`{argv[0]}` failed: {_reason(answer)}", hint=f"run `{shlex.join(argv)}` to see the error")
    return answer.stdout + answer.stderr * errors if not answer.returncode else ""


def _reason(answer: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed: its first line that contains a word such as `error`, else its last line."""
    lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
    return next((line for line in lines if re.search("error|fatal|fail|unrecognized|invalid", line, re.IGNORECASE)), lines[-1])


def _wait(seconds: float, on_tick: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        on_tick()
        time.sleep(0.05)


def _facts(line: str) -> dict[str, str]:
    """Return the `key=value` pairs of a line; the first value of a key counts."""
    facts: dict[str, str] = {}
    for key, value in re.findall(r"(\S+?)=(\S*)", line):
        facts.setdefault(key, value)
    return facts


def _addresses(listed: str) -> dict[str, str]:
    """Return the addresses of the listed hosts by their names, from one query."""
    known = map(_facts, ask("scontrol", "show", "node", "--oneliner", listed).splitlines())
    return {facts["NodeName"]: facts.get("NodeAddr", facts["NodeName"]) for facts in known if "NodeName" in facts}


def _count(ids: str) -> int:
    """Return the number of ids in a list such as `0-3,8`."""
    ends = [part.split("-") for part in ids.split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


def _gpus(gres: str) -> int:
    """Return the number of GPUs in a list such as `gpu:a100:2(IDX:0-1),nic:1`."""
    return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", gres))
