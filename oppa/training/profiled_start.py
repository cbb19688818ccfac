"""The first steps of a run, whose passes are profiled (FlexTrain, section 4.1).

A run whose order is searched for begins with a micro-batch at a time, as it is not known what else fits: for some steps with whole backward
passes, for some with both halves apart, so that both are known. One whose order is stored goes in that from the first step on.
"""

import contextlib
from collections.abc import Iterator

from oppa.pipeline.configured import order_of, searches, shape_of
from oppa.pipeline.graph import Order
from oppa.pipeline.profile import Profile
from oppa.pipeline.schedules import one_by_one
from oppa.training.memory import PeakMemory
from oppa.training.mesh import Mesh
from oppa.training.profiling import Profiling
from oppa.training.replica import Replica
from oppa.trials.wire import TrialSpec


class ProfiledStart:
    """Of one rank; all ranks go through it together.

    Args:
        steps: That are timed, in each order; the one before them is watched for its memory.
        order: To profile in, instead of those.
    """

    def __init__(self, replica: Replica, spec: TrialSpec, mesh: Mesh, steps: int, order: Order | None = None) -> None:
        self._replica, self._mesh, self._steps = replica, mesh, steps
        configuration = spec.configuration
        self._orders: list[Order] = []
        if order is not None:
            self._orders = [order]
        elif searches(configuration):
            self._orders = [one_by_one(shape_of(configuration), split=split) for split in (False, True)]
        self._profiling = Profiling(replica, spec, mesh, self._orders[0] if self._orders else order_of(configuration))
        self._left = 0
        self._begin()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around a step."""
        if self._left <= self._steps:
            yield
            return
        peak = PeakMemory(self._mesh.device)
        with peak.watch():
            self._profiling.watch(peak)
            yield

    def took(self, step_s: float) -> Profile | None:
        """A step has taken so long; the profile, if it was the last one."""
        self._profiling.took(step_s)
        self._left -= 1
        if self._left:
            return None
        if self._orders:
            self._begin()
            return None
        return self._profiling.profile()

    def stop(self) -> None:
        """Profile no more."""
        self._profiling.stop()

    def _begin(self) -> None:
        self._left = self._steps + 1
        if self._orders:
            self._replica.reorder(self._orders.pop(0))
