"""Name what changed since a study was measured: versions, image, files of the launch line, hardware, nodes."""

import dataclasses
from collections.abc import Mapping, Sequence

from oppa.problem.software import Software, edited
from oppa.study import Trial
from oppa.tuning.verify.finished import FinishedStudy

FACTS = ("oppa", "hardware")
"""Facts of a session that are compared."""
SHOWN = 4
"""Largest number of hosts that are listed by name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """Names a difference between what a study was measured on and what it is verified on."""

    name: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} {self.then} -> {self.now}"


def changes(finished: FinishedStudy, software: Software | None, facts: Mapping[str, str]) -> tuple[EnvironmentChange, ...]:
    """Return what changed from the study to this environment, as far as both are known.

    Args:
        software: Software that the trials of the verification run on; None if they are simulated.
        facts: Facts of the verification's session.
    """
    then = finished.problem.software
    found = [] if then is None or software is None else [*then.differences(software), *edited(then, software)]
    names = FACTS if software is not None else FACTS[:1]  # simulated trials do not depend on the hardware
    found += [(name, finished.facts[name], facts[name]) for name in names if name in finished.facts and name in facts]
    return tuple(EnvironmentChange(name=name, then=before, now=after) for name, before, after in found if before != after)


def moved(finished: FinishedStudy, trials: Sequence[Trial]) -> tuple[EnvironmentChange, ...]:
    """Return the change of hosts, if the study and the verification recorded theirs and they differ."""
    then, now = finished.hosts, tuple(sorted({host for trial in trials for host in trial.hosts}))
    if not then or not now or then == now:
        return ()
    return (EnvironmentChange(name="nodes", then=_listed(then), now=_listed(now)),)


def _listed(hosts: Sequence[str]) -> str:
    """Return the names of hosts, or of the first and the last of many."""
    return ", ".join(hosts) if len(hosts) <= SHOWN else f"{hosts[0]} ... {hosts[-1]} ({len(hosts)} nodes)"
