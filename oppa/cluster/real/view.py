"""What Slurm says of a partition: nodes that are idle, jobs that wait for nodes, and who has come. Asked by `squeue` and `sinfo`."""

import dataclasses
from collections.abc import Collection, Sequence

from oppa.errors import EnvironmentLackingError
from oppa.places.slurm import ask

OWN = "oppa-elastic:"
"""Begins the comment of jobs that hold hosts for an elastic one; its name follows."""
FOR_NODES = ("Resources", "Priority", "None")
"""Reasons for which a job waits that more idle nodes could end."""
_JOBS = "%i|%T|%D|%r|%k"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job of Slurm's."""

    id: str
    state: str
    nodes: int
    reason: str
    elastic: str
    """Whose hosts it holds, by name; empty: nobody's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Of one moment."""

    idle: int
    jobs: Sequence[Queued]
    """In the order in which Slurm would start them."""

    @property
    def waiting(self) -> list[Queued]:
        """Jobs that could start if more nodes were idle."""
        return [job for job in self.jobs if job.state == "PENDING" and job.reason in FOR_NODES]

    def others(self, known: Collection[str]) -> list[Queued]:
        """Those of nobody's elastic jobs that were not known."""
        return [job for job in self.jobs if not job.elastic and job.id not in known]


def look(partition: str = "") -> View:
    """Now; raises EnvironmentLackingError where Slurm does not answer."""
    words = [f"--partition={partition}"] if partition else []
    listed = ask("squeue", "--noheader", "--sort=-p,i", f"--format={_JOBS}", *words)
    states = ask("sinfo", "--noheader", "--Node", "--format=%N|%t", *words)
    idle = {line.partition("|")[0] for line in states.splitlines() if line.partition("|")[2].strip() == "idle"}
    return View(idle=len(idle), jobs=[_job(line) for line in listed.splitlines() if line.strip()])


def _job(line: str) -> Queued:
    try:
        number, state, nodes, reason, comment = line.strip().split("|", 4)
        elastic = comment.removeprefix(OWN) if comment.startswith(OWN) else ""
        return Queued(id=number, state=state, nodes=int(nodes), reason=reason.strip("()"), elastic=elastic)
    except ValueError:
        raise EnvironmentLackingError(f"`squeue` says `{line}`", hint="a Slurm from 20.11 on is needed") from None
