"""Plan a search in two sizes before it starts: the smaller size, what it shows, and the expected GPU-hours."""

import dataclasses
from typing import Any

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.proxy.budget import expected_hours
from oppa.tuning.proxy.choice import choose
from oppa.tuning.proxy.rung import Rung
from oppa.tuning.proxy.stand_ins import Proxy
from oppa.tuning.verification import Interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """Describes the smaller size of a search."""

    proxy: Proxy
    expected: Interval | None
    """Expected GPU-hours of both sizes together; None if the prior does not cover the job."""

    @property
    def rung(self) -> Rung:
        """Return the smaller size."""
        return self.proxy.rung

    @property
    def matched(self) -> int:
        """Return the number of full-size configurations that have a stand-in."""
        return int(self.proxy.matched.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            **dataclasses.asdict(self.rung),
            "configurations": len(self.proxy.candidates),
            "matched": self.matched,
            "expected_gpu_hours": self.expected and dataclasses.asdict(self.expected),
        }


def plan_proxy(problem: Problem, candidates: Candidates, *, simulated: bool) -> ProxyPlan:
    """Return the plan of a job's smaller size; raises InputError if it has none.

    Args:
        simulated: Trials are simulated, so that their start-up is known.
    """
    proxy = choose(problem, candidates)
    return ProxyPlan(proxy=proxy, expected=expected_hours(proxy, problem, candidates, simulated=simulated))
