"""Set local batches in proportion to the measured speed of workers: the baseline for DYNAMIX on workers of different speed.

The global batch stays fixed, and each worker's share is proportional to its speed (LB-BSP, Chen et al. 2020). All workers then finish at
the same time, and none waits.
"""

import operator
from collections.abc import Sequence

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, Policy, stay
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError

WINDOW = 20
"""Default window, in steps."""


class ProportionalPolicy(Policy):
    """Divides the global batch among workers in proportion to their speed.

    Args:
        throughputs: Unused, because the global batch stays fixed.
        window: Steps over which speed is measured.
        margin: Relative reduction of the slowest worker's own time that a change must exceed.

    Raises:
        InputError: if `window` is below 1 or `margin` is negative.
    """

    def __init__(self, throughputs: ThroughputIndex | None = None, *, window: int = WINDOW, margin: float = 0.05) -> None:
        if window < 1 or not margin >= 0:
            raise InputError(
                f"`window = {window}`, `margin = {margin}` are out of range", hint="give at least 1 step, and a margin of 0 or more"
            )
        self.window, self._margin = window, margin

    def decide(self, state: JobState) -> Decision:
        """Return a decision with new local batches and the same global batch."""
        workers, present = state.workers, state.configuration
        if not workers:
            return stay(state, "workers report no speeds: only pure data parallelism has local batches", Limit.UNKNOWN)
        speeds = [worker.local_batch / worker.compute_s for worker in workers]
        wanted = shared_out(present.global_batch, speeds)
        before_s, after_s = max(worker.compute_s for worker in workers), max(map(operator.truediv, wanted, speeds))
        saved = 1 - after_s / before_s
        reason = f"shares of {present.global_batch} by speed: the slowest worker's own time falls by {max(0.0, saved):.0%}"
        if wanted == tuple(worker.local_batch for worker in workers) or saved <= self._margin:
            return stay(state, reason, Limit.MARGIN)
        return Decision(command=DecisionKind.SCALE_BS, configuration=present, local_batches=wanted, reason=reason)


def shared_out(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return integer shares of a batch in proportion to speeds, each at least 1, that sum to `total`.

    Each sample left over by rounding goes to the worker that finishes it soonest.

    Args:
        total: Samples; at least one per worker.
        speeds: Speed of each worker, in samples per second.
    """
    shares = [max(1, int(total * speed / sum(speeds))) for speed in speeds]
    while sum(shares) < total:
        soonest = min(range(len(speeds)), key=lambda worker: (shares[worker] + 1) / speeds[worker])
        shares[soonest] += 1
    while sum(shares) > total:  # the minimum of 1 gave slow workers more than their share
        latest = max((worker for worker in range(len(speeds)) if shares[worker] > 1), key=lambda worker: shares[worker] / speeds[worker])
        shares[latest] -= 1
    return tuple(shares)
