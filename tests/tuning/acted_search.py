"""Limit the searches whose trials are acted out in this process, and watch them."""

from oppa.problem.training import Limits

LIMITS = Limits(trials=8, q_min=5, q_max=12, repeats=3, trial_time_s=20)


class Onlooker:
    """Counts its events, and stops the trials that it is to stop."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.break_off_after: int | None = None

    def started(self, lease) -> None:
        self.seen.append("started")

    def stepped(self, measurement) -> None:
        self.seen.append("stepped")

    def ended(self, lease, result) -> None:
        self.seen.append(result.outcome)

    def tick(self) -> None:
        if self.break_off_after is not None and self.seen.count("started") > self.break_off_after:
            raise KeyboardInterrupt
