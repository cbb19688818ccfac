"""Hold a change of layout by a restart: from its decision to the first step in the new layout, or to its failure."""

import dataclasses

from oppa.problem.configuration import Configuration
from oppa.training.run.resize import ResizeRequest
from oppa.training.run.run_controller import ControllerDecision
from oppa.training.run.run_folder import RunSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMove:
    """Holds a change of configuration by a restart, from the request to the first step in the new layout."""

    before: Configuration
    run: RunSpec
    """The run on the present hosts."""
    decision: ControllerDecision
    resize: ResizeRequest | None = None
    """Request for another number of hosts that it follows; None for a layout on the same hosts."""
    asked_s: float = 0.0
    """Monotonic seconds at which the trainer was asked to leave; 0 before."""
    left_s: float = 0.0
    """Monotonic seconds at which it had left; 0 before."""
    stepped_s: float = 0.0
    """Monotonic seconds of the first step in the new layout; 0 before."""

    @property
    def shrinks(self) -> bool:
        """Return True if it returns hosts, for which others wait."""
        return self.resize is not None and self.resize.hosts < self.run.problem.cluster.hosts

    @property
    def after(self) -> RunSpec:
        """Return the run in the new layout, on the hosts that it then has."""
        run = dataclasses.replace(self.run, configuration=self.decision.configuration)
        if self.resize is None:
            return run
        cluster = dataclasses.replace(run.problem.cluster, hosts=self.resize.hosts)
        return dataclasses.replace(run, problem=dataclasses.replace(run.problem, cluster=cluster))

    def seconds(self, now_s: float) -> dict[str, float]:
        """Return the seconds that the trainer took to leave, and those of the start up to its first step, or up to now."""
        if not self.left_s:
            return {"save": now_s - self.asked_s}
        return {"save": self.left_s - self.asked_s, "start": (self.stepped_s or now_s) - self.left_s}
