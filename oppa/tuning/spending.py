"""Account for the devices that a study has held: GPU-hours and money, by what they were used for.

A trial holds all devices of the cluster from its start until no process of it is left. Rendezvous, the start of images and compilation
are therefore included. A launcher that holds hosts for a whole session, as Slurm does, also holds them between trials.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from oppa.problem.cluster import Cluster
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Study, Trial
from oppa.trials.throughput import warm_up_steps
from oppa.trials.trial import TrialResult
from oppa.tuning.proxy.nested import nested_study
from oppa.units import format_hours, format_money

HOUR_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """States the seconds in which a study has held all devices of its cluster, and their price."""

    cluster: Cluster
    limits: Limits
    startup_s: float
    """Seconds that trials took to start, as `starting_s` defines them."""
    steps_s: float
    """Seconds of trials after their start."""
    idle_s: float
    """Seconds between trials in which a launcher held the devices."""
    proxy_s: float = 0.0
    """Seconds of all devices that cost as much as the study of the smaller size."""

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each use, by its name; uses that a study need not have are left out if they took none."""
        others = {"between trials": self.idle_s, "at the smaller size": self.proxy_s}
        return {"start-up": self.startup_s, "steps": self.steps_s, **{name: seconds for name, seconds in others.items() if seconds}}

    @property
    def seconds(self) -> float:
        """Return the seconds in which the study has held its devices."""
        return sum(self.parts.values())

    @property
    def gpu_hours(self) -> float:
        """Return the hours of all devices together."""
        return gpu_hours(self.cluster, self.seconds)

    @property
    def startup_share(self) -> float:
        """Return the share of the time that trials took to start; 0 before the first trial."""
        return self.startup_s / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; null where a price or a limit is not stated."""
        priced = self.limits.price_per_gpu_hour is not None
        return {
            "gpu_hours": self.gpu_hours,
            "cost": cost(self.limits, self.gpu_hours),
            "currency": self.limits.currency if priced else None,
            "limit": self.limits.max_gpu_hours,
            "startup_gpu_hours": gpu_hours(self.cluster, self.startup_s),
            "steps_gpu_hours": gpu_hours(self.cluster, self.steps_s),
            "idle_gpu_hours": gpu_hours(self.cluster, self.idle_s),
            **({"proxy_gpu_hours": gpu_hours(self.cluster, self.proxy_s)} if self.proxy_s else {}),
        }


def spending(study: Study, problem: Problem) -> Spending:
    """Return what all sessions of a study have spent, on a smaller size as well; a trial that runs now is not included."""
    below, own = nested_study(study.folder), spending_on(study.trials(), problem, idle_s=study.idle_s())
    return dataclasses.replace(own, proxy_s=below.seconds_on(problem.cluster)) if below else own


def spending_on(trials: Sequence[Trial], problem: Problem, *, idle_s: float = 0.0) -> Spending:
    """Return what trials have spent, whatever their outcome and their purpose.

    Args:
        idle_s: Seconds between the trials in which the devices were held.
    """
    startup_s = sum(map(starting_s, trials))
    total_s = sum(trial.seconds for trial in trials)
    return Spending(
        cluster=problem.cluster, limits=problem.limits, startup_s=startup_s, steps_s=max(0.0, total_s - startup_s), idle_s=idle_s
    )


def starting_s(trial: Trial | TrialResult) -> float:
    """Return the seconds that a trial took to start: those before its first step, and what warm-up steps took beyond the usual.

    Programs compile in their first steps. A trial without a step took all its seconds to start.
    """
    if trial.setup_s is None:
        return trial.seconds
    times_s, extra_s = trial.step_times_s, 0.0
    if len(times_s) > 1:
        warm_up = warm_up_steps(times_s)
        usual_s = statistics.median(times_s[warm_up:])
        extra_s = sum(max(0.0, time_s - usual_s) for time_s in times_s[:warm_up])
    return min(trial.seconds, trial.setup_s + extra_s)


def gpu_hours(cluster: Cluster, seconds: float) -> float:
    """Return the hours of all devices of a cluster together."""
    return seconds * cluster.devices / HOUR_S


def cost(limits: Limits, hours: float) -> float | None:
    """Return the price of GPU-hours; None without a price."""
    return None if limits.price_per_gpu_hour is None else hours * limits.price_per_gpu_hour


def unit(cluster: Cluster) -> str:
    """Return the name of the unit in which devices are counted: GPU-hours, or device-hours of CPUs."""
    return "GPU-hours" if cluster.on_cuda else "device-hours"


def in_words(cluster: Cluster, limits: Limits, seconds: float) -> str:
    """Return GPU-hours as text, followed by their price if there is one: `3.28 GPU-hours, 8.19 EUR`."""
    hours = gpu_hours(cluster, seconds)
    return f"{format_hours(hours)} {unit(cluster)}{priced(limits, hours)}"


def priced(limits: Limits, hours: float) -> str:
    """Return the price of GPU-hours as text that follows them, `, 8.19 EUR`; empty without a price."""
    price = cost(limits, hours)
    return "" if price is None else f", {format_money(price, limits.currency)}"


def spent_in_words(known: Spending) -> str:
    """Return what was spent and what it was spent on, as text."""
    most = known.limits.max_gpu_hours
    of_limit = "" if most is None else f" of {format_hours(most)}"
    parts = [f"{seconds / known.seconds:.0%} {name}" for name, seconds in known.parts.items()] if known.seconds else []
    if parts:
        parts[0] = f"{format_hours(gpu_hours(known.cluster, known.startup_s))} ({known.startup_share:.0%}) start-up"
    shares = f": {', '.join(parts)}" if parts else ""
    return f"{format_hours(known.gpu_hours)}{of_limit} {unit(known.cluster)}{priced(known.limits, known.gpu_hours)}{shares}"
