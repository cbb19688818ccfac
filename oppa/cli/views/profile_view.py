"""Show the plan of a profile, its progress like that of a search, and its table."""

from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.cli.views.plan_view import time_in_words
from oppa.cli.views.search_view import SearchView
from oppa.cli.views.summary import HEAD, problem_lines, warn_of_unknown_device
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.records import MEASURED
from oppa.trials.interruption import Interruption
from oppa.tuning.profile import Profiler
from oppa.tuning.spending import gpu_hours, in_words
from oppa.units import format_hours, format_seconds, with_noun

if TYPE_CHECKING:
    from oppa.tuning.outcomes import ProfileResult
    from oppa.tuning.profile_plan import ProfilePlan


class ProfileView(SearchView):
    """Prints a line for each trial that ended, on a terminal above the fastest configuration at each batch and the expected loss."""

    _IMPROVED = "fastest at this batch"

    def __init__(self, study: Study, interruption: Interruption, problem: Problem, profiler: Profiler) -> None:
        self._profiler = profiler
        self._fastest: dict[int, tuple[float, Configuration]] = {}
        super().__init__(study, interruption, problem)

    def _improves(self, trial: Trial) -> bool:
        """Return True if a trial is the fastest so far at its batch, and keep it; steps of several batches are not compared."""
        batch, rate = trial.configuration.global_batch, trial.steps_per_s
        if trial.outcome not in MEASURED or rate is None or (batch in self._fastest and rate <= self._fastest[batch][0]):
            return False
        self._fastest[batch] = (rate, trial.configuration)
        return True

    def _name(self, configuration: Configuration) -> str:
        return name(configuration)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("trial", self._trial_text())]
        for batch, (rate, configuration) in sorted(self._fastest.items()):
            rows.append((f"B {batch}", f"{configuration.id}   [green]{style.number(rate * batch)} sequences/s[/]"))
        if loss := self._profiler.loss:
            expected = f"{loss.worst:.1%} of goodput expected at the worst noise scale, {loss.mean:.1%} over all"
            end = "" if self._profiler.bound is None else f"; ends at {self._profiler.bound:.1%}"
            rows.append(("loss", f"{expected}{end}"))
        return [*rows, ("budget", self._budget_text())]


def name(configuration: Configuration) -> str:
    """Return a configuration's id together with its global batch, which the id leaves out."""
    return f"B{configuration.global_batch} {configuration.id}"


def print_profile_plan(plan: "ProfilePlan") -> None:
    """Print the problem of a profile, its configurations at each batch, the launcher, the budget and the first trial, to stdout."""
    problem, limits = plan.problem, plan.problem.limits
    budget = [with_noun(limits.trials, "trial")] if limits.trials is not None else []
    table = {"table": f"{plan.resumed.folder}, {plan.resumed.trials} trials done; the cost is that of the rest"} if plan.resumed else {}
    rows = {**table, "runs": plan.launcher, "budget": ", ".join(budget + time_in_words(problem)) or "none"}
    if plan.first is not None:
        rows["first"] = name(plan.first)
    rows["cost"] = _cost_in_words(plan)
    if plan.loss_bound is not None:
        rows["ends"] = f"once the expected loss of goodput is at most {plan.loss_bound:.1%} at every noise scale"
    made = style.table((">batch", ">configurations", ">predicted to fit"))
    for each in plan.batches:
        made.add_row(str(each.global_batch), f"{each.configurations:,}", f"{each.fitting:,}")
    lines = [problem_lines(problem, problem.candidates()), *(f"[bold]{name:<6}[/] {escape(value)}" for name, value in rows.items())]
    style.print_rows(style.out(), lines, HEAD)
    style.out().print("", made)
    warn_of_unknown_device(problem.cluster)


def _cost_in_words(plan: "ProfilePlan") -> str:
    """Return the range of a profile's cost in hours of devices, with the price of the most."""
    cluster, (fewest, most) = plan.problem.cluster, plan.trials
    least_hours = format_hours(gpu_hours(cluster, plan.seconds[0]))
    most_hours = in_words(cluster, plan.problem.limits, plan.seconds[1])
    trials = with_noun(most, "trial") if fewest == most else f"{fewest:,} to {most:,} trials"
    return f"{least_hours} to {most_hours}: {trials}, each with all its steps"


def print_table(found: "ProfileResult") -> None:
    """Print the fastest configuration at each batch, what the profile took, and the folder of the table, to stderr."""
    made = style.table((">batch", "fastest", ">sequences/s", ">steps/s", ">peak", "source"))
    for row in found.fastest:
        rate = f"{style.number(row.samples_per_s)} ± {row.log_stddev:.1%}"
        made.add_row(
            str(row.configuration.global_batch), f"[cyan]{row.configuration.id}[/]", rate, style.number(row.steps_per_s),
            style.memory(row.memory_bytes), row.source,
        )  # fmt: skip
    style.err().print(f"\n{found.ended}\n", made, *_facts(found), sep="\n")


def _facts(found: "ProfileResult") -> list[str]:
    origin = found.table.origin
    loss = f", expected loss of goodput {origin.expected_loss:.2%}" if origin.expected_loss is not None else ""
    lines = [
        f"[bold]trials[/]  {origin.trials} of {origin.candidates} configurations, {format_seconds(origin.spent_s)}{loss}",
    ]
    if origin.pruned:
        lines.append(f"[bold]pruned[/]  {origin.pruned} configurations need at least as much memory as one that ran out of memory")
    if found.exhaustive_s is not None:
        lines.append(f"[bold]without[/] prediction, trials of all configurations would take about {format_seconds(found.exhaustive_s)}")
    return [*lines, f"[bold]table[/]   {escape(str(found.folder))}"]
