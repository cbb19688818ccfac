"""Find the change of configuration with which an attempt has failed: the run returns to the configuration before it.

A larger batch or another layout may exhaust the memory, and a policy would decide on it again. So a failure within `PROOF` steps of a
change counts as that of the change. The step that the trainer has begun is one of them, as it may never report that.
"""

import dataclasses
import time
from collections.abc import Mapping

from oppa.control.own_trainer.attempt import OwnAttempt
from oppa.control.own_trainer.layout_move import LayoutMove
from oppa.problem.configuration import Configuration
from oppa.training.run.resize import ResizeRequest
from oppa.training.run.run_controller import ControllerDecision
from oppa.trials.trial import TrialResult

PROOF, RESIZE_PROOF = 20, 2
"""Steps that prove a change of configuration, and one of the number of hosts: a host may die at any time, and is requested anew."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailedChange:
    """Holds a change that has failed; the next attempt returns to the configuration before."""

    before: Configuration
    decision: ControllerDecision
    seconds: Mapping[str, float]
    failure: str
    move: LayoutMove | None = None
    """The change as a restart; None if the batch changed between two steps."""
    is_revoked: bool = False
    """True if hosts were withdrawn, which is no evidence about the layout."""

    @property
    def resize(self) -> ResizeRequest | None:
        """Return the request for another number of hosts that it followed; None without one."""
        return self.move.resize if self.move is not None else None


def failed_change(attempt: OwnAttempt, result: TrialResult, *, move: LayoutMove | None, begun: LayoutMove | None) -> FailedChange | None:
    """Return the change with which an attempt has failed; None if it had made none, or had proved it.

    Args:
        attempt: The attempt.
        result: How it failed.
        move: A change by a restart that is in progress.
        begun: The change by a restart with which the attempt began, if it has taken a step.
    """
    if move is not None and move.asked_s:
        return _failed_move(move, result)
    if attempt.left is not None:
        return None
    was_revoked, change = result.outcome == "interrupted", attempt.change
    if change is not None:
        failure = f"the trainer failed with the new batch: {result.cause}"
        failed = FailedChange(before=change.before, decision=change.decision, seconds={"rebatch": 0.0}, failure=failure)
        return None if was_revoked or attempt.step >= change.step + PROOF else failed
    if begun is None or attempt.steps >= (PROOF if begun.resize is None else RESIZE_PROOF) or (was_revoked and begun.resize is None):
        return None
    return _failed_move(begun, result)


def _failed_move(move: LayoutMove, result: TrialResult) -> FailedChange:
    done = "failed in" if move.stepped_s else "did not resume in" if move.left_s else "did not save and leave for"
    return FailedChange(
        before=move.before,
        decision=move.decision,
        seconds=move.seconds(time.monotonic()),
        failure=f"the trainer {done} the new layout: {result.cause}",
        move=move,
        is_revoked=result.outcome == "interrupted",
    )
