"""Print the plan of `oppa tune --dry-run`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.cli.views.summary import HEAD, problem_lines, transfer_lines, warn_if_it_does_not_pay, warn_of_unknown_device
from oppa.problem.problem import Problem
from oppa.report.money import expected_lines, most_lines
from oppa.tuning.device_budget import limit_in_words
from oppa.tuning.plan import TunePlan
from oppa.tuning.spending import unit
from oppa.units import format_hours, format_seconds, with_noun

if TYPE_CHECKING:  # it loads torch
    from oppa.tuning.proxy.plan import ProxyPlan
    from oppa.tuning.resumed_study import ResumedStudy


def print_plan(plan: TunePlan, *, overestimates: bool = False) -> None:
    """Print the problem of a search, the launcher, the budget and the first trial, to stdout.

    Args:
        overestimates: True if the job needs less memory than predicted.
    """
    problem, limits = plan.problem, plan.problem.limits
    budget = [_trials_in_words(plan, limits.trials)] if limits.trials is not None else []
    budget += time_in_words(problem)
    study = {"study": _study_in_words(plan.resumed)} if plan.resumed else {}
    rows = {**study, "runs": plan.launcher, "budget": ", ".join(budget) or "none: the search ends when every configuration was tried"}
    if plan.first is not None:
        rows["first"] = plan.first.id + (", the baseline" if plan.first == problem.baseline else "")
    if plan.expected:
        rows |= dict(expected_lines(plan.expected, overestimates=overestimates))
    elif problem.command is not None and not (plan.resumed and plan.resumed.has_ended):
        rows |= dict(most_lines(problem, len(plan.candidates)))
    rows = _with_proxy(rows, plan, plan.proxy) if plan.proxy else rows
    lines = [
        problem_lines(problem, plan.candidates),
        *transfer_lines(plan.transfer),
        *(f"[bold]{name:<6}[/] {escape(value)}" for name, value in rows.items()),
    ]
    style.print_rows(style.out(), lines, HEAD)
    warn_of_unknown_device(problem.cluster)
    warn_if_it_does_not_pay(plan.expected)


def time_in_words(problem: Problem) -> list[str]:
    """Return the limits of time and of hours of devices."""
    wall_s, hours = problem.limits.wall_time_s, problem.limits.max_gpu_hours
    return [*([format_seconds(wall_s)] if wall_s is not None else []), *([limit_in_words(problem)] if hours is not None else [])]


def _trials_in_words(plan: TunePlan, limit: int) -> str:
    """Return how many trials the search may take. It ends sooner if all configurations were tried, of which some may be measured again."""
    count = len(plan.candidates)
    trials = with_noun(limit, "trial")
    return trials if plan.proxy or count > limit else f"{with_noun(count, 'valid configuration')}, in at most {trials}"


def _study_in_words(resumed: "ResumedStudy") -> str:
    """Return the study that a search resumes, and what the plan is about."""
    rest = "its search has ended, and verification may be left" if resumed.has_ended else "the cost is that of the rest"
    return f"{resumed.folder}, {resumed.trials} search trials done; {rest}"


def _with_proxy(rows: Mapping[str, str], plan: TunePlan, smaller: "ProxyPlan") -> dict[str, str]:
    """Return the rows of a plan with its smaller size, and with the cost of both sizes before that of the full size alone."""
    rung, hours = smaller.rung, smaller.expected
    shown = f"{len(smaller.proxy.candidates):,} configurations stand for {smaller.matched:,} of {len(plan.candidates):,}"
    size = f"{rung.hosts} hosts, {rung.layers} layers, a global batch of {rung.global_batch}: {shown}"
    size += f"; {with_noun(smaller.resumed.trials, 'search trial')} done there" if smaller.resumed else ""
    found = {**rows, "proxy": size}
    if hours is not None and "cost" in rows:
        known = unit(plan.problem.cluster)
        both = f"{format_hours(hours.value)} {known} [{format_hours(hours.low)} - {format_hours(hours.high)}] with the proxy"
        found |= {"cost": f"{both}, without it {rows['cost']}", "starts": f"without it {rows['starts']}"}
    return found
