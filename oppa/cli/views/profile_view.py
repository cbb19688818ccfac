"""Show the progress of a profile like that of a search: the fastest configuration at each batch, and the expected loss."""

from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.cli.views.search_view import LiveSearchView, PlainSearchView
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.records import MEASURED
from oppa.trials.interruption import Interruption
from oppa.tuning.profile import Profiler
from oppa.units import format_seconds

if TYPE_CHECKING:
    from oppa.tuning.outcomes import ProfileResult

MARK = "   [bold green]fastest at this batch[/]"


class PlainProfileView(PlainSearchView):
    """Prints one line per trial that ended."""

    def __init__(self, study: Study, interruption: Interruption, problem: Problem, profiler: Profiler) -> None:
        self._fastest: dict[int, tuple[float, Configuration]] = {}
        self._profiler = profiler
        super().__init__(study, interruption, problem)
        for trial in study.trials():
            self._leads(trial)

    def _line(self, trial: Trial) -> str:
        return super()._line(trial) + (MARK if self._leads(trial) else "")

    def _improves(self, steps_per_s: float | None, configuration: Configuration) -> bool:
        """Return False, because steps of several batches are not compared."""
        return False

    def _name(self, configuration: Configuration) -> str:
        return name(configuration)

    def _leads(self, trial: Trial) -> bool:
        batch = trial.configuration.global_batch
        if trial.outcome not in MEASURED or trial.steps_per_s is None:
            return False
        if batch in self._fastest and trial.steps_per_s <= self._fastest[batch][0]:
            return False
        self._fastest[batch] = (trial.steps_per_s, trial.configuration)
        return True


class LiveProfileView(PlainProfileView, LiveSearchView):
    """Shows the trials' lines above a live view of the fastest configuration at each batch and the expected loss."""

    def __init__(self, study: Study, interruption: Interruption, problem: Problem, profiler: Profiler, bound: float) -> None:
        self._bound = bound
        super().__init__(study, interruption, problem, profiler)

    def _rows(self) -> list[tuple[str, str]]:
        fastest = [
            (f"B {batch}", f"{configuration.id}   [green]{style.number(rate * batch)} sequences/s[/]")
            for batch, (rate, configuration) in sorted(self._fastest.items())
        ]
        loss = self._profiler.loss
        known = (
            [
                (
                    "loss",
                    f"{loss.worst:.1%} of goodput expected at the worst noise scale, {loss.mean:.1%} over all; ends at {self._bound:.1%}",
                )
            ]
            if loss
            else []
        )
        return [("trial", self._trial_text()), *fastest, *known, ("budget", self._budget_text())]


def name(configuration: Configuration) -> str:
    """Return a configuration's id together with its global batch, which the id leaves out."""
    return f"B{configuration.global_batch} {configuration.id}"


def make_profile_view(study: Study, interruption: Interruption, problem: Problem, profiler: Profiler, *, bound: float) -> PlainProfileView:
    """Return the live view on a terminal, else the one that prints plain lines."""
    if style.err().is_terminal:
        return LiveProfileView(study, interruption, problem, profiler, bound)
    return PlainProfileView(study, interruption, problem, profiler)


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
