"""Stop a run under `oppa train` in its middle, so that another call resumes it."""

from pathlib import Path

from oppa.control.training_session.callback import RunCallback


class StopAfter(RunCallback):
    """Asks a run to stop after so many steps, counted from one of its attempts on."""

    def __init__(self, steps: int, *, attempt: int = 1) -> None:
        self._left, self._attempt = steps, attempt
        self.attempts: list[Path] = []
        """Folders of the attempts that have begun."""

    def began(self, attempt: Path) -> None:
        """Count an attempt."""
        self.attempts.append(attempt)

    def stepped(self, measurement: object) -> None:
        """Count a step."""
        self._left -= len(self.attempts) >= self._attempt

    def stop_requested(self) -> bool:
        """Return True once the steps are taken."""
        return self._left <= 0
