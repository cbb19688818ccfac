"""Local batches in proportion to the speed that workers have shown: what DYNAMIX is compared with on uneven workers.

The global batch stays, and each worker gets the share of it that it is the fastest worker's share of (LB-BSP, Chen et al. 2020): then
all are through at the same time, and nobody waits.
"""

from collections.abc import Sequence

from oppa.control.decision import Command, Decision, Limit, Policy, Situation, stay
from oppa.control.offers import Offers
from oppa.errors import InputError

WINDOW = 20
"""Steps."""


class ProportionalPolicy(Policy):
    """Shares the global batch out in proportion to speed.

    Args:
        offers: Not looked at: the batch stays what it is.
        window: Steps over which speed is measured.
        margin: The least share by which the slowest worker's own time has to fall, or a change is not worth it.
    """

    def __init__(self, offers: Offers | None = None, *, window: int = WINDOW, margin: float = 0.05) -> None:
        if window < 1 or not margin >= 0:
            raise InputError(f"`window = {window}`, `margin = {margin}`", hint="give at least 1 step, and a margin of 0 or more")
        self.window, self._margin = window, margin

    def decide(self, situation: Situation) -> Decision:
        """Other shares of the same batch."""
        workers, present = situation.workers, situation.configuration
        if not workers:
            return stay(situation, "workers do not say how fast they are: layouts other than dp share nothing out", Limit.UNKNOWN)
        speeds = [worker.local_batch / worker.compute_s for worker in workers]
        wanted = shared_out(present.global_batch, speeds)
        before_s, after_s = max(worker.compute_s for worker in workers), _slowest_s(wanted, speeds)
        saved = 1 - after_s / before_s
        told = f"shares of {present.global_batch} by speed: the slowest worker's own time falls by {max(0.0, saved):.0%}"
        if wanted == tuple(worker.local_batch for worker in workers) or saved <= self._margin:
            return stay(situation, told, Limit.MARGIN)
        return Decision(command=Command.SCALE_BS, configuration=present, local_batches=wanted, reason=told)


def shared_out(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Whole shares of a batch in proportion to speeds, of at least 1, that add up to it: what is left goes where it is done soonest.

    Args:
        total: Samples; at least one for each.
        speeds: Of workers, in samples per second.
    """
    shares = [max(1, int(total * speed / sum(speeds))) for speed in speeds]
    while sum(shares) < total:
        soonest = min(range(len(speeds)), key=lambda worker: (shares[worker] + 1) / speeds[worker])
        shares[soonest] += 1
    while sum(shares) > total:  # slow ones have got a sample that they do not deserve
        latest = max((worker for worker in range(len(speeds)) if shares[worker] > 1), key=lambda worker: shares[worker] / speeds[worker])
        shares[latest] -= 1
    return tuple(shares)


def _slowest_s(shares: Sequence[int], speeds: Sequence[float]) -> float:
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
