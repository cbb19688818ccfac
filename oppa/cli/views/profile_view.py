"""Show the progress of a profile like that of a search: the fastest configuration at each batch, and the expected loss."""

from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.cli.views.search_view import SearchView
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.records import MEASURED
from oppa.trials.interruption import Interruption
from oppa.tuning.profile import Profiler
from oppa.units import format_seconds

if TYPE_CHECKING:
    from oppa.tuning.outcomes import ProfileResult


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
