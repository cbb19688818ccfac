"""Validate by samples, in pauses of the run."""

from __future__ import annotations

from typing import Any

from oppa_client.loop.position import Position
from oppa_client.run import Run


class PausedValidator:
    """Stands for torchtitan's validator under oppa.

    Args:
        validator: The validator.
        run: Its pauses are no step times.
        position: How far the run is.
    """

    def __init__(self, validator: Any, run: Run, position: Position) -> None:
        self._validator, self._run, self._position = validator, run, position

    def should_validate(self, step: int) -> bool:
        """Return True if the samples of `freq` steps of the reference batch have passed."""
        return self._position.passed(self._validator.config.freq)

    def validate(self, model_parts: Any, step: int) -> None:
        """Validate, and count the seconds as a pause."""
        with self._run.paused("evaluation"):
            self._validator.validate(model_parts, step)
