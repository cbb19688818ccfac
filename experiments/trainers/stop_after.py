"""Stop a run under `oppa train` in its middle, so that another call resumes it."""

from oppa.control.training_session import RunCallback


class StopAfter(RunCallback):
    """Asks a run to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def stepped(self, measurement: object) -> None:
        """Count a step."""
        self._left -= 1

    def stop_requested(self) -> bool:
        """Return True once the steps are taken."""
        return self._left <= 0
