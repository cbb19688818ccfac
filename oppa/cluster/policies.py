"""What a scheduler does with idle GPUs while nobody waits, by name.

    none          nothing: jobs keep what they ask for
    greedy        grows elastic jobs into whatever is idle, however soon it may be asked back
    flextrain     the same where it probably pays (eqs. 14-16)
    elasticflow   shares all of it out anew whenever a job comes or goes, by the most throughput for each GPU (Gu et al. 2023)

All but `none` give GPUs back to a job that cannot start.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from oppa.cluster.decisions import Running, Scaling, Settings, grow, shared_out
from oppa.errors import InputError, nearest

Possible = Callable[[Running, int], bool]
"""Whether a job can be given so many GPUs, where they lie."""


class Policy(Protocol):
    """Of one cluster."""

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[Scaling]:
        """What to do next with idle GPUs, while nobody waits; those that shrink come first."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Growing:
    """`greedy` and `flextrain`: one job at a time."""

    settings: Settings

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[Scaling]:
        """The next one to grow."""
        found = grow(running, idle, rate, self.settings, possible=possible)
        return [found] if found else []


@dataclasses.dataclass(frozen=True, slots=True)
class ElasticFlow:
    """`elasticflow`: all of them at once."""

    settings: Settings

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[Scaling]:
        """From the sizes that they have to those that they should have."""
        sizes = shared_out(running, idle, self.settings)
        changes = [
            Scaling(
                job=each.job,
                before=each.gpus,
                after=sizes[each.job.name],
                speedup=each.table.speedup(sizes[each.job.name]) / each.speedup,
                reason="more throughput for as many GPUs",
            )
            for each in running
            if sizes[each.job.name] != each.gpus
        ]
        return sorted(changes, key=lambda change: change.after - change.before)


NAMES = ("none", "greedy", "flextrain", "elasticflow")


def policy_of(name: str, settings: Settings) -> Policy | None:
    """By its name; None for `none`. Raises InputError for any other."""
    if name not in NAMES:
        raise InputError(f"`--policy {name}` is not known", hint=nearest(name, NAMES))
    if name == "greedy":
        return Growing(dataclasses.replace(settings, threshold=0.0))
    if name == "elasticflow":
        return ElasticFlow(settings)
    return Growing(settings) if name == "flextrain" else None
