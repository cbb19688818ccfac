"""The two ends of an attempt: the state that a program resumes, and why it leaves."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any


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

    @property
    def deadline_s(self) -> float:
        """Return the seconds that are left."""
        return self.until - time.time()
