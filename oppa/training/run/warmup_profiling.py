"""Profile the passes of the first steps of a run (FlexTrain, section 4.1).

A run that searches for a schedule starts with one micro-batch at a time, because it is not known yet which schedules fit in memory. Some
steps have whole backward passes, and some have split ones, so that both are profiled. A run with a stored schedule uses it from the first
step on.
"""

import contextlib
from collections.abc import Iterator

from oppa.pipeline.from_configuration import schedule_of, searches, shape_of
from oppa.pipeline.graph import Schedule
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.schedules import one_by_one
from oppa.training.parallel.mesh import Mesh
from oppa.training.profiler.memory import PeakMemory
from oppa.training.replica import Replica
from oppa.training.run.step_profiling import StepProfiling
from oppa.trials.trial_folder import TrialSpec


class WarmupProfiling:
    """Profiles the first steps of one rank; all ranks do so together.

    Args:
        replica: Replica of this rank.
        spec: Model and configuration.
        mesh: Process groups of this rank.
        steps: Timed steps under each schedule; one step before them measures memory.
        schedule: Schedule to profile under, instead of one micro-batch at a time.
    """

    def __init__(self, replica: Replica, spec: TrialSpec, mesh: Mesh, steps: int, schedule: Schedule | None = None) -> None:
        self._replica, self._mesh, self._steps = replica, mesh, steps
        configuration = spec.configuration
        self._schedules: list[Schedule] = []
        if schedule is not None:
            self._schedules = [schedule]
        elif searches(configuration):
            self._schedules = [one_by_one(shape_of(configuration), split=split) for split in (False, True)]
        self._profiling = StepProfiling(replica, spec, mesh, self._schedules[0] if self._schedules else schedule_of(configuration))
        self._left = 0
        self._begin()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Measure memory during a step, if it is the first one of a schedule."""
        if self._left <= self._steps:
            yield
            return
        peak = PeakMemory(self._mesh.device)
        with peak.watch():
            self._profiling.watch(peak)
            yield

    def took(self, step_s: float) -> PipelineProfile | None:
        """Record the time of a step; return the profile after the last step, else None."""
        self._profiling.took(step_s)
        self._left -= 1
        if self._left:
            return None
        if self._schedules:
            self._begin()
            return None
        return self._profiling.profile()

    def stop(self) -> None:
        """Stop profiling."""
        self._profiling.stop()

    def _begin(self) -> None:
        self._left = self._steps + 1
        if self._schedules:
            self._replica.set_schedule(self._schedules.pop(0))
