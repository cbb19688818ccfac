"""What Slurm says of a partition: nodes that are idle, jobs that wait for nodes, and who has come. Asked by `squeue` and `sinfo`."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from oppa.errors import EnvironmentLackingError
from oppa.places.slurm import ask

OWN = "oppa-elastic:"
"""Begins the comment of jobs that hold hosts for an elastic one; its token follows."""
FOR_NODES = ("Resources", "Priority", "None")
"""Reasons for which a job waits that more idle nodes could end."""
LIMITS = ("Limit", "Max")
"""Are part of the reasons that a limit of an account, a user or a partition gives."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job of Slurm's."""

    id: str
    state: str
    nodes: int
    reason: str
    elastic: str
    """Whose hosts it holds, by token; empty: nobody's."""

    @property
    def submission(self) -> str:
        """Its number, or that of the array that it belongs to."""
        return self.id.partition("_")[0]

    @property
    def for_nodes(self) -> bool:
        """It waits, and more idle nodes could end that."""
        return self.state == "PENDING" and self.reason in FOR_NODES

    @property
    def limited(self) -> bool:
        """It waits, and idle nodes will not do."""
        return self.state == "PENDING" and any(word in self.reason for word in LIMITS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Of one moment."""

    idle: int
    jobs: Sequence[Queued]
    """In the order in which Slurm would start them."""

    @property
    def waiting(self) -> list[Queued]:
        """Jobs that could start if more nodes were idle."""
        return [job for job in self.jobs if job.for_nodes]

    def pending(self, token: str) -> Queued | None:
        """The job that would hold an elastic one's hosts, if it waits."""
        return next((job for job in self.jobs if job.elastic == token and job.state == "PENDING"), None)

    def others(self, known: Collection[str]) -> list[Queued]:
        """One of each submission that was not known, and holds no elastic job's hosts."""
        found = {job.submission: job for job in self.jobs if not job.elastic and job.submission not in known}
        return list(found.values())


def look(partition: str = "") -> View:
    """Now; raises EnvironmentLackingError where Slurm does not answer."""
    words = [f"--partition={partition}"] if partition else []
    listed = ask("squeue", "--noheader", "--sort=-p,i", "--format=%i|%T|%D|%r", *words)
    # Comments are free text, of our own jobs alone: what other users write into theirs is never read.
    comments = (line.partition("|") for line in ask("squeue", "--me", "--noheader", "--format=%i|%k", *words).splitlines())
    tokens = {number.strip(): comment.removeprefix(OWN) for number, _, comment in comments if comment.startswith(OWN)}
    states = ask("sinfo", "--noheader", "--Node", "--format=%N|%t", *words)
    idle = {line.partition("|")[0] for line in states.splitlines() if line.partition("|")[2].strip() == "idle"}
    return View(idle=len(idle), jobs=[_job(line, tokens) for line in listed.splitlines() if line.strip()])


def _job(line: str, tokens: Mapping[str, str]) -> Queued:
    try:
        number, state, nodes, reason = line.strip().split("|", 3)
        return Queued(id=number, state=state, nodes=int(nodes), reason=reason.strip("()"), elastic=tokens.get(number, ""))
    except ValueError:
        raise EnvironmentLackingError(f"`squeue` says `{line}`", hint="a Slurm from 20.11 on is needed") from None
