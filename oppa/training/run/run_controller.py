"""Define the interface through which rank 0 receives requests to change a run while it trains."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from oppa.problem.configuration import Configuration
from oppa.protocol.messages import ChangeFacts, StepFacts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDecision:
    """Requests what a run should do before its next step."""

    configuration: Configuration
    """Configuration to train in from the next step on."""
    local_batches: tuple[int, ...] = ()
    """Samples of each worker; empty if all take the same number."""
    reason: str = ""
    """Human-readable reason."""
    weighed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """JSON values that explain the decision: goodput of the present, the chosen and the best configuration, and the limit that applies."""
    before_step: int | None = None
    """Restore the weights from before this step; None keeps the present weights."""


class RunController(Protocol):
    """Receives the events of a run on rank 0, and may request changes. Its methods must return quickly."""

    stays: bool
    """True if the last decision was to continue unchanged."""

    def step(self, facts: StepFacts) -> None:
        """Record an optimizer step."""

    def changed(self, facts: ChangeFacts) -> None:
        """Record an attempted change of configuration."""

    def wanted(self, present: Configuration) -> ControllerDecision | None:
        """Return what the run should do; None requests no change."""
