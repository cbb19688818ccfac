"""Scaling policies by name: what a scheduler does with idle GPUs while no job waits.

    none          nothing: jobs keep their requested size
    greedy        scales elastic jobs up into all idle GPUs, even if another job may soon need them
    flextrain     does the same if it probably pays (eqs. 14-16)
    elasticflow   redistributes all idle and spare GPUs at every check, by the most throughput per GPU (Gu et al. 2023)

All but `none` reclaim GPUs for a job that cannot start.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from oppa.cluster.scaling import Running, ScaleDecision, Settings, grow, shared_out
from oppa.errors import require_known

Possible = Callable[[Running, int], bool]
"""Returns True if the placement allows a job to hold this number of GPUs."""


class ScalingPolicy(Protocol):
    """Scales the jobs of one cluster."""

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[ScaleDecision]:
        """Return the next changes of size while no job waits; jobs that shrink come first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Growing:
    """Implements `greedy` and `flextrain`, which scale one job at a time."""

    settings: Settings

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[ScaleDecision]:
        """Return the next job to scale up, if any."""
        found = grow(running, idle, rate, self.settings, possible=possible)
        return [found] if found else []


@dataclasses.dataclass(frozen=True, slots=True)
class ElasticFlow:
    """Implements `elasticflow`, which scales all jobs at once."""

    settings: Settings

    def scale(self, running: Sequence[Running], idle: int, rate: float, possible: Possible) -> list[ScaleDecision]:
        """Return the changes from the present sizes to the redistributed ones."""
        sizes = shared_out(running, idle, self.settings)
        changes = [
            ScaleDecision(
                job=each.job,
                before=each.gpus,
                after=sizes[each.job.name],
                speedup=each.table.speedup(sizes[each.job.name]) / each.speedup,
                reason="more throughput for the same number of GPUs",
            )
            for each in running
            if sizes[each.job.name] != each.gpus
        ]
        return sorted(changes, key=lambda change: change.after - change.before)


NAMES = ("none", "greedy", "flextrain", "elasticflow")


def policy_of(name: str, settings: Settings) -> ScalingPolicy | None:
    """Return the policy of this name, or None for `none`; raises InputError for an unknown name."""
    require_known(name, NAMES, f"`--policy {name}` is unknown")
    if name == "greedy":
        return Growing(dataclasses.replace(settings, threshold=0.0))
    if name == "elasticflow":
        return ElasticFlow(settings)
    return Growing(settings) if name == "flextrain" else None
