"""Count the progress of a run under oppa by samples, and decide by it when the `Trainer` logs, evaluates, saves and ends."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback


@dataclasses.dataclass
class Position:
    """Holds how far a run under oppa is, and how long it is.

    Args:
        samples: Samples taken so far.
        total: Samples of the whole training.
        reference: Samples of a step of `TrainingArguments`.
    """

    samples: int
    total: int
    reference: float
    start: int = dataclasses.field(init=False)
    """Samples taken before the first step of this process."""
    before: int = dataclasses.field(init=False)
    """Samples taken before the last step."""

    def __post_init__(self) -> None:
        self.start = self.before = self.samples

    def take(self, samples: int) -> None:
        """Go on by the samples of a step."""
        self.before, self.samples = self.samples, self.samples + samples

    def passed(self, steps: float) -> bool:
        """Return True if a multiple of so many steps of `TrainingArguments` ended with the last step, or within it."""
        interval = steps * self.reference
        return self.samples // interval > self.before // interval

    @property
    def is_done(self) -> bool:
        """Return True if all samples are taken."""
        return self.samples >= self.total


class SampleFlow(DefaultFlowCallback):  # type: ignore[misc]
    """Decides after which steps the `Trainer` logs, evaluates and saves: by samples instead of steps."""

    def __init__(self, position: Position) -> None:
        self.position = position

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Set what is due after a step."""
        at = self.position
        first = args.logging_first_step and state.global_step == 1
        control.should_log |= first or (args.logging_strategy == "steps" and at.passed(state.logging_steps))
        if args.eval_strategy == "steps" and args.eval_delay * at.reference <= at.samples:
            control.should_evaluate |= at.is_done or at.passed(state.eval_steps)
        if args.save_strategy == "steps":
            control.should_save |= at.is_done or (state.save_steps > 0 and at.passed(state.save_steps))
        control.should_training_stop |= at.is_done
        return control
