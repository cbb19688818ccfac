"""Decide by the samples taken when the `Trainer` logs, evaluates, saves and ends."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import DefaultFlowCallback

from oppa_client.loop.position import Position


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
