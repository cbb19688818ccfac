"""Plan a search before it starts: its subject, its launcher, its first trial, its expected cost and gain."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.tuning import designers
from oppa.tuning.designer import Designer, Observation
from oppa.tuning.search import next_candidate
from oppa.tuning.session import Setup

if TYPE_CHECKING:  # they load torch
    from oppa.cost.coefficients import Belief
    from oppa.tuning.expectation import Expectation, StartTime
    from oppa.tuning.proxy.plan import ProxyPlan
    from oppa.tuning.proxy.stand_ins import Proxy
    from oppa.tuning.resumed_study import ResumedStudy
    from oppa.tuning.transfer import TransferredPrior


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """Holds the plan of a search: its subject, its launcher, its first trial, and what it is expected to cost and to gain."""

    problem: Problem
    candidates: Candidates
    launcher: str
    """Name of the launcher of the trials; `simulated` if nothing is started; what is lacking if they cannot start here."""
    first: Configuration | None
    """Configuration of the first trial; None if no trial is left, or none is known."""
    expected: "Expectation | None" = None
    """The expected cost and gain at full size alone; None if the prior does not cover the job."""
    transfer: "TransferredPrior | None" = None
    """The studies that the search starts from; None if there are none."""
    proxy: "ProxyPlan | None" = None
    """The smaller size at which the search runs first; None if it runs at full size."""
    resumed: "ResumedStudy | None" = None
    """The study that the search resumes, whose rest the plan is about; None if the search begins a study."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.problem.name,
            "configurations": len(self.candidates),
            "launcher": self.launcher,
            "software": self.problem.software and self.problem.software.to_dict(),
            "limits": dataclasses.asdict(self.problem.limits),
            "baseline": self.problem.baseline and self.problem.baseline.to_dict(),
            "first": self.first and self.first.to_dict(),
            "expected": self.expected and self.expected.to_dict(),
            **({"transfer": self.transfer.to_dict()} if self.transfer else {}),
            **({"proxy": self.proxy.to_dict()} if self.proxy else {}),
            **({"study": self.resumed.to_dict()} if self.resumed else {}),
        }


def expectation(setup: Setup, designer: str, beliefs: "Mapping[str, Belief] | None" = None) -> "Expectation | None":
    """Return what a search is expected to cost and to gain; None if the prior does not cover the job.

    Args:
        designer: Name of the designer, which decides whether trials end early.
        beliefs: Coefficients learned elsewhere.
    """
    if not setup.problem.has_prior:
        return None
    return _expected(setup.problem, setup.candidates, designer, start_s=_simulated_start(setup), beliefs=beliefs)


def is_expected(problem: Problem, designer: str) -> bool:
    """Return whether a search starts with its expected cost: its designer has loaded the prior, or the job states money or a run."""
    limits = problem.limits
    stated = limits.max_gpu_hours, limits.price_per_gpu_hour, limits.run_length_s
    return designer in designers.WITH_PRIOR or any(each is not None for each in stated)


def make_plan(setup: Setup, designer: str, *, seed: int, transfer: "TransferredPrior | None", folder: Path | None = None) -> TunePlan:
    """Return the plan of a search on this machine, with the first trial that the designer would suggest.

    Args:
        transfer: The studies that the search starts from; None if there are none.
        folder: Folder of a study that the search resumes, if it exists.

    Raises:
        InputError: the job has no smaller size, or the folder has the study of another problem.
    """
    from oppa.tuning.resumed_study import ResumedStudy

    problem, candidates, simulated = setup.problem, setup.candidates, setup.runner.in_process
    beliefs, smaller = transfer.beliefs if transfer else None, None
    resumed = ResumedStudy.of(folder, problem, simulated=simulated) if folder else None
    if problem.proxy is not None:
        from oppa.tuning.proxy.plan import plan_proxy

        smaller = plan_proxy(setup, folder, resumed)
    begun, among, ran = (smaller.proxy.problem, smaller.proxy.candidates, smaller.resumed) if smaller else (problem, candidates, resumed)
    first = _first(begun, among, designers.make_designer(designer, begun, among, seed=seed, beliefs=beliefs), ran)
    if first is None and smaller is not None and smaller.resumed is not None:  # the smaller search has ended
        first = _first_at_full_size(setup, smaller.proxy, smaller.resumed, resumed, beliefs)
    if resumed is not None:
        setup = dataclasses.replace(setup, problem=dataclasses.replace(problem, limits=resumed.left))
    return TunePlan(
        problem=problem,
        candidates=candidates,
        launcher="simulated" if simulated else setup.request.launcher,
        first=first,
        expected=None if resumed is not None and resumed.has_ended else expectation(setup, designer, beliefs),
        transfer=transfer,
        proxy=smaller,
        resumed=resumed,
    )


def _first(problem: Problem, candidates: Candidates, designer: Designer, ran: "ResumedStudy | None") -> Configuration | None:
    """Return the configuration of the next trial; None if the search has ended.

    Args:
        ran: The study that the search resumes; None if it begins one.
    """
    if ran is not None and ran.has_ended:
        return None
    seen = [Observation.of(trial, candidates) for trial in ran.observed] if ran else []
    designer.update(seen)
    suggested = next_candidate(problem, candidates, designer, {each.candidate for each in seen})
    return None if suggested is None else candidates.configuration(suggested)


def _first_at_full_size(
    setup: Setup, proxy: "Proxy", below: "ResumedStudy", ran: "ResumedStudy | None", beliefs: "Mapping[str, Belief] | None"
) -> Configuration | None:
    """Return the configuration of the next trial after the search at the smaller size; None if that one measured nothing.

    Args:
        below: The study of the smaller size.
        ran: The study of the full size; None if there is none yet.
    """
    from oppa.tuning.proxy.upward import Upward

    taught = [Observation.of(trial, proxy.candidates) for trial in below.observed]
    if not any(each.measured for each in taught):
        return None
    designer = Upward(setup.problem, setup.candidates, proxy, taught, beliefs=beliefs)
    return _first(setup.problem, setup.candidates, designer, ran)


def plan_elsewhere(problem: Problem, designer: str, why: str) -> TunePlan:
    """Return the plan of a search that this machine cannot run, as for a cluster's launch line on another machine.

    Args:
        designer: Name of the designer, which decides whether trials end early.
        why: What is lacking here.
    """
    candidates = problem.candidates()
    expected = _expected(problem, candidates, designer) if problem.has_prior else None
    return TunePlan(problem=problem, candidates=candidates, launcher=f"not here: {why}", first=problem.baseline, expected=expected)


def _expected(
    problem: Problem,
    candidates: Candidates,
    designer: str,
    *,
    start_s: "StartTime | None" = None,
    beliefs: "Mapping[str, Belief] | None" = None,
) -> "Expectation | None":
    """Return the expected cost and gain of a search; None if the cost model lacks the device, the framework or the precision."""
    from oppa.tuning.expectation import expect

    rule = problem.search_options.stopping or designers.default_stopping(designer)
    try:
        return expect(problem, candidates, start_s=start_s, stopping=rule, beliefs=beliefs)
    except InputError:
        return None


def _simulated_start(setup: Setup) -> "StartTime | None":
    """Return the start-up of simulated trials; None if real processes start."""
    if not setup.runner.in_process:
        return None
    from oppa.tuning.expectation import simulated_start

    return simulated_start(setup.problem, setup.simulator)
