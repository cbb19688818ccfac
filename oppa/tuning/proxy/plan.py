"""Plan a search in two sizes before it starts: the smaller size, what it shows, and the expected GPU-hours."""

import dataclasses
from pathlib import Path
from typing import Any

from oppa.tuning.proxy.budget import expected_hours
from oppa.tuning.proxy.ladder import limited_in, proxy_in
from oppa.tuning.proxy.nested import FOLDER
from oppa.tuning.proxy.rung import Rung
from oppa.tuning.proxy.stand_ins import Proxy
from oppa.tuning.resumed_study import ResumedStudy
from oppa.tuning.session import Setup
from oppa.tuning.verification import Interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """Describes the smaller size of a search."""

    proxy: Proxy
    expected: Interval | None
    """Expected GPU-hours of both sizes together; None if the prior does not cover the job."""
    resumed: ResumedStudy | None
    """The study of the smaller size that the search resumes; None if the search begins one."""

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
            **({"study": self.resumed.to_dict()} if self.resumed else {}),
        }


def plan_proxy(setup: Setup, folder: Path | None, full_size: ResumedStudy | None) -> ProxyPlan:
    """Return the plan of a job's smaller size, as a search in a folder has it.

    Args:
        full_size: The study of the full size in that folder; None if there is none yet.

    Raises:
        InputError: the job has no smaller size, or the folder has the study of another one.
    """
    proxy, simulated = proxy_in(setup, folder), setup.runner.in_process
    ran = ResumedStudy.of(folder / FOLDER, limited_in(setup, proxy, folder), simulated=simulated) if folder else None
    left = dataclasses.replace(setup.problem, limits=full_size.left) if full_size else setup.problem
    expected = expected_hours(proxy, left, setup.candidates, simulated=simulated, ran=ran)
    return ProxyPlan(proxy=proxy, expected=expected, resumed=ran)
