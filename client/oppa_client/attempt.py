"""The ends of an attempt: where a program begins in a trial, the state that it resumes, and why it leaves."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from oppa_client.plan import Plan, Terms


@dataclasses.dataclass(frozen=True)
class Resume:
    """Holds the state from which the program goes on."""

    checkpoint: str
    step: int
    """Steps taken up to the checkpoint."""
    samples: int
    """Samples taken up to the checkpoint."""
    layout: dict[str, Any]
    """Configuration of the ranks that saved it; the present one may differ."""
    plan: Plan
    """Plan of the first step after the checkpoint."""

    @classmethod
    def of(cls, attempt: dict[str, Any]) -> Resume | None:
        """Return what attempt.json has to resume; None if it has no checkpoint."""
        if attempt["checkpoint"] is None:
            return None
        step, samples = int(attempt["step"]), int(attempt["samples"])
        plan = Terms.of(attempt["plan"]).at(step, samples, attempt["total_samples"], attempt.get("statistics_every"))
        return cls(attempt["checkpoint"], step, samples, attempt.get("saved_by") or attempt["configuration"], plan)


@dataclasses.dataclass(frozen=True)
class Leaving:
    """Asks the program to leave now, before the next step."""

    reason: str
    """`finished`: all samples are taken; `layout`, `stop` or `preemption`: another attempt may follow; `trial`: the trial is over."""
    until: float = math.inf
    """Unix seconds until which the program has to save and leave."""

    @property
    def save(self) -> bool:
        """Return True if the program has to save a checkpoint; a trial needs none."""
        return self.reason != "trial"

    @property
    def early(self) -> bool:
        """Return True if the program ends before its training does: samples are left, or the trial is over."""
        return self.reason != "finished"

    def later(self, seconds: float) -> Leaving:
        """Return the same request with so many seconds more; a site that takes its devices away gives none."""
        return self if self.reason == "preemption" else dataclasses.replace(self, until=self.until + seconds)

    @property
    def deadline_s(self) -> float:
        """Return the seconds that are left."""
        return self.until - time.time()


def attempt_of_trial(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for attempt.json in a trial: its configuration, from the first sample on.

    No gradients are measured. A run measures each of its first steps, and fewer of the others, whose time counts.
    """
    batch, micro_batch, dp = (int(configuration[name]) for name in ("global_batch", "micro_batch", "dp"))
    terms = Terms.fixed(batch, micro_batch, max(1, batch // (dp * micro_batch)))
    return {
        "configuration": configuration,
        "total_samples": None,
        "samples": 0,
        "step": 0,
        "checkpoint": None,
        "plan": terms.to_dict(),
        "statistics_every": 0,
    }
