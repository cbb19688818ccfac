"""Define the result of a training session: how the training of a run ended."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.control.own_trainer.advice import Advice
from oppa.table.refinement import StepTimeObservation
from oppa.table.table import Table
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import checkpoints
from oppa.training.run.supervision import Ending, Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Describes how the training of a run ended."""

    folder: Path
    """Folder of the run; a further call resumes it."""
    outcome: Outcome
    lines: Sequence[Line]
    """The valid lines of the run's ledger, which each iteration reads anew: a long run has more than fit in memory."""
    seconds: float
    worth: Mapping[str, Any]
    """Goodput gain and regret of a policy's decisions; empty without a policy."""
    reached: bool
    """False if the ranks took steps and never reached their control service."""
    table: Table | None
    """The table that the run began with."""
    refined: Table | None
    """The table with the step times of this run; None without a table, or without steps."""
    observations: Sequence[StepTimeObservation]

    @property
    def finished(self) -> bool:
        """Return True if all samples were seen."""
        return self.outcome.ending is Ending.FINISHED

    @property
    def advice(self) -> Advice | None:
        """Return what advice that was not followed would have been worth; None if there was none."""
        return Advice.of(self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, as `oppa train --json` prints it."""
        steps, last, held_out, advice = 0, dict[str, Any](), None, self.advice
        for line in self.lines:
            if line["event"] == ledger.STEP:
                steps, last = steps + 1, dict(line)
            elif line["event"] == ledger.VALIDATED:
                held_out = line["loss"]
        return {
            "run": str(self.folder),
            "ending": self.outcome.ending.value,
            "cause": self.outcome.last.cause,
            "attempts": self.outcome.attempts,
            "seconds": self.seconds,
            "steps": steps,
            "samples": ledger.require_whole(self.lines),
            **{name: last.get(name) for name in ("configuration", "global_batch", "micro_batch", "loss", "noise_scale", "health")},
            "validation_loss": held_out,
            "checkpoint": next(map(str, checkpoints(self.folder)), None),
            "worth": self.worth or None,
            **({"advice": advice.to_dict()} if advice else {}),
        }
