"""Read the state of a Slurm partition with `squeue` and `sinfo`: idle nodes and queued jobs.

Jobs of other partitions compete for the same nodes if these partitions share some, so they count, too.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oppa.cluster.scheduler import QueuedJob, QueueSnapshot
from oppa.errors import EnvironmentLackingError
from oppa.launchers.slurm import ask, hostnames

OWN = "oppa-elastic:"
"""Prefix of the comment of Slurm jobs that hold hosts for an elastic job; the token of that job follows."""
FOR_NODES = ("Resources", "Priority", "None")
"""Reasons of pending jobs that more idle nodes could resolve."""
IDLE = ("idle", "plnd")
"""States of nodes that no job holds; Slurm's backfill plans a job that waits for the second kind."""
LIMITS = ("Limit", "Max")
"""Substrings of the reasons that name a limit of an account, a user or a partition."""


def take_snapshot(partition: str = "", *, without: str = "") -> QueueSnapshot:
    """Query Slurm.

    Args:
        partition: Names of the partitions whose nodes count, separated by commas; the default one if it is empty, as for sbatch.
        without: Hosts that do not count as idle, as Slurm lists them: `n[1-3],n7`.

    Raises:
        EnvironmentLackingError: Slurm does not answer.
    """
    states = ask("sinfo", "--noheader", "--all", "--Node", "--format=%N|%t|%P")
    nodes = [_PartitionNode(*(word.strip() for word in f"{line}||".split("|")[:3])) for line in states.splitlines()]
    asked = {name for name in partition.split(",") if name} or {node.partition.rstrip("*") for node in nodes if node.is_default}
    usable = {node.name for node in nodes if not asked or node.partition.rstrip("*") in asked}
    idle = {node.name for node in nodes if node.name in usable and node.state in IDLE} - set(hostnames(without))
    sharing = {node.partition.rstrip("*") for node in nodes if node.name in usable} | asked
    words = ["--all", *([f"--partition={','.join(sorted(sharing))}"] if asked else [])]
    listed = ask("squeue", "--noheader", "--sort=-p,i", "--format=%i|%T|%D|%r", *words)
    # Comments are free text, so only those of our own jobs are read, never those of other users.
    comments = (line.partition("|") for line in ask("squeue", "--me", "--noheader", "--format=%i|%k", *words).splitlines())
    tokens = {number.strip(): comment.removeprefix(OWN) for number, _, comment in comments if comment.startswith(OWN)}
    return QueueSnapshot(idle=len(idle), jobs=_merged(_job(line, tokens) for line in listed.splitlines() if line.strip()))


class _PartitionNode(NamedTuple):
    """Describes a node in one of its partitions."""

    name: str
    state: str
    partition: str
    """Name of the partition; Slurm marks the default one by a star."""

    @property
    def is_default(self) -> bool:
        return self.partition.endswith("*")


def shows_all_jobs() -> bool:
    """Return False if Slurm hides the jobs of other users (`PrivateData`); raises EnvironmentLackingError if it does not answer."""
    found = re.search(r"^PrivateData\s*=\s*(.*)$", ask("scontrol", "show", "config"), re.MULTILINE)
    return found is None or "jobs" not in found[1].strip().split(",")


def _job(line: str, tokens: Mapping[str, str]) -> QueuedJob:
    try:
        number, state, nodes, reason = line.strip().split("|", 3)
        return slurm_job(number, state, int(nodes), reason.strip("()"), elastic=tokens.get(number, ""))
    except ValueError:
        raise EnvironmentLackingError(f"`squeue` prints `{line}`, which oppa cannot read", hint="use Slurm 20.11 or later") from None


def _merged(listed: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Return the jobs with the components of a heterogeneous job, such as `7+0` and `7+1`, as one: they start together or not at all."""
    found: dict[tuple[str, bool, bool], list[QueuedJob]] = {}
    for job in listed:
        found.setdefault((job.id.partition("+")[0], job.pending, job.completing), []).append(job)
    jobs = []
    for (number, *_), components in found.items():
        held_up = next((each for each in components if not each.for_nodes), components[0])
        jobs.append(dataclasses.replace(held_up, id=number, nodes=sum(each.nodes for each in components)))
    return jobs


def slurm_job(number: str, state: str, nodes: int, reason: str = "", *, elastic: str = "") -> QueuedJob:
    """Return a job of Slurm's queue from its number, such as `7` or `7_[1-4]`, its state and its reason."""
    pending, array = state == "PENDING", number.partition("_")[0]
    return QueuedJob(
        id=number,
        nodes=nodes,
        pending=pending,
        completing=state == "COMPLETING",
        reason=reason,
        for_nodes=pending and reason in FOR_NODES,
        limited=pending and any(word in reason for word in LIMITS),
        elastic=elastic,
        array=array if array != number else "",
    )
