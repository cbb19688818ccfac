"""Read the state of a Slurm partition with `squeue` and `sinfo`: idle nodes, queued jobs, and new submissions."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from oppa.errors import EnvironmentLackingError
from oppa.launchers.slurm import ask

OWN = "oppa-elastic:"
"""Prefix of the comment of Slurm jobs that hold hosts for an elastic job; the token of that job follows."""
FOR_NODES = ("Resources", "Priority", "None")
"""Reasons of pending jobs that more idle nodes could resolve."""
LIMITS = ("Limit", "Max")
"""Substrings of the reasons that name a limit of an account, a user or a partition."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in Slurm's queue."""

    id: str
    state: str
    nodes: int
    reason: str
    elastic: str
    """Token of the elastic job whose hosts it holds; empty for other jobs."""

    @property
    def submission(self) -> str:
        """Return the id of the job, or of the job array that it belongs to."""
        return self.id.partition("_")[0]

    @property
    def for_nodes(self) -> bool:
        """Return True if it is pending, and could start with more idle nodes."""
        return self.state == "PENDING" and self.reason in FOR_NODES

    @property
    def limited(self) -> bool:
        """Return True if it is pending because of a limit, which idle nodes do not resolve."""
        return self.state == "PENDING" and any(word in self.reason for word in LIMITS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Idle nodes and queued jobs at one moment."""

    idle: int
    """Number of idle nodes."""
    jobs: Sequence[QueuedJob]
    """Jobs in the order in which Slurm would start them."""

    @property
    def waiting(self) -> list[QueuedJob]:
        """Return the jobs that could start if more nodes were idle."""
        return [job for job in self.jobs if job.for_nodes]

    def pending(self, token: str) -> QueuedJob | None:
        """Return the pending Slurm job that requests hosts for this elastic job, if any."""
        return next((job for job in self.jobs if job.elastic == token and job.state == "PENDING"), None)

    def others(self, known: Collection[str]) -> list[QueuedJob]:
        """Return one job of each submission that is not in `known` and holds no elastic job's hosts."""
        found = {job.submission: job for job in self.jobs if not job.elastic and job.submission not in known}
        return list(found.values())


def look(partition: str = "") -> QueueSnapshot:
    """Query Slurm; raises EnvironmentLackingError if it does not answer."""
    words = [f"--partition={partition}"] if partition else []
    listed = ask("squeue", "--noheader", "--sort=-p,i", "--format=%i|%T|%D|%r", *words)
    # Comments are free text, so only those of our own jobs are read, never those of other users.
    comments = (line.partition("|") for line in ask("squeue", "--me", "--noheader", "--format=%i|%k", *words).splitlines())
    tokens = {number.strip(): comment.removeprefix(OWN) for number, _, comment in comments if comment.startswith(OWN)}
    states = ask("sinfo", "--noheader", "--Node", "--format=%N|%t", *words)
    idle = {line.partition("|")[0] for line in states.splitlines() if line.partition("|")[2].strip() == "idle"}
    return QueueSnapshot(idle=len(idle), jobs=[_job(line, tokens) for line in listed.splitlines() if line.strip()])


def _job(line: str, tokens: Mapping[str, str]) -> QueuedJob:
    try:
        number, state, nodes, reason = line.strip().split("|", 3)
        return QueuedJob(id=number, state=state, nodes=int(nodes), reason=reason.strip("()"), elastic=tokens.get(number, ""))
    except ValueError:
        raise EnvironmentLackingError(f"`squeue` says `{line}`", hint="a Slurm from 20.11 on is needed") from None
