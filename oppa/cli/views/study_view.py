"""Draw a study: its facts, its trials, its result, and the surrogate that is fitted to it."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from oppa.cli.views import style
from oppa.cli.views.summary import print_result
from oppa.cli.views.verify_view import print_past
from oppa.plain_text import plain_text
from oppa.problem.problem import Problem
from oppa.report.study import facts, failures, on_slow_nodes, ranked, slow_node_facts, slow_nodes_of, spending_facts
from oppa.report.surrogate import LENGTHSCALES, sections
from oppa.study import Study, Trial
from oppa.tuning.comparison import compare_contenders, contenders
from oppa.tuning.equivalence import equivalence
from oppa.tuning.result import break_even
from oppa.tuning.routing import routing
from oppa.tuning.spending import Spending, spending
from oppa.tuning.verify.past import past

if TYPE_CHECKING:
    from oppa.tuning.surrogate_summary import SurrogateSummary

NARROW = 80
"""Width in characters below which a table of trials leaves out columns."""


def print_study(study: Study, problem: Problem, *, limit: int) -> None:
    """Print a study's facts, its fastest trials up to `limit`, what failed, and the winner."""
    trials, spent, slow = study.trials(), spending(study, problem), slow_nodes_of(problem)
    result = compare_contenders(trials, problem.candidates(), problem.limits.repeats, problem.baseline)
    routes = routing(problem, contenders(result) if result else ())
    style.out().print(_facts(problem, trials, spent, slow, routes), _trials(problem, ranked(trials)[:limit], slow))
    if failed := failures(trials):
        style.out().print("\n".join(f"[bold]failed[/]   {escape(line)}" for line in failed))
    for number, fault in study.damaged().items():
        style.out().print(f"[bold]damaged[/]  trial {number}, which is left out: {escape(plain_text(fault))}")
    if result:
        pays = break_even(result, spent, problem)
        print_result(result, equivalence(study, result, problem), objective=problem.objective, break_even=pays, console=style.out())
    print_past(past(study.folder))


def print_surrogate(learned: "Mapping[str, SurrogateSummary]") -> None:
    """Print the summary of the surrogate of each quantity."""
    for section in sections(learned):
        table = style.table([escape(name) for name in section.columns])
        for position, cells in enumerate(section.rows):
            shortest = position == 0 and section.columns == LENGTHSCALES
            table.add_row(*(escape(str(cell)) for cell in cells), style="bold" if shortest else None)
        style.out().print(f"\n[bold]{section.title}[/]", escape(section.text), *([table] if section.rows else []), sep="\n")


def _facts(problem: Problem, trials: Sequence[Trial], spent: Spending, slow_nodes: Collection[str], routes: str) -> Table:
    table = style.table(("fact", "value"))
    routing_facts = [("routing", routes)] if routes else []
    software = problem.software.facts if problem.software else []
    of_trials = [*facts(trials, problem.objective), *slow_node_facts(trials, slow_nodes), *spending_facts(spent)]
    for cells in [*of_trials, *routing_facts, *software]:
        table.add_row(*map(escape, cells))
    return table


def _trials(problem: Problem, trials: Sequence[Trial], slow_nodes: Collection[str]) -> Table:
    """Return the table of trials; a narrow terminal has no room for predictions and memory."""
    sought, is_narrow = problem.objective, style.out().width < NARROW
    columns = (">trial", "configuration", "outcome", f">{escape(sought.unit)}", ">predicted", ">memory")
    shown = slice(4 if is_narrow else None)
    table = style.table(columns[shown])
    for trial in trials:
        speed = style.objective(sought, trial.steps_per_s, trial.stddev)
        predicted = style.objective(sought, trial.prediction.steps_per_s if trial.prediction else None)
        outcome, memory = style.outcome(trial.outcome), style.memory(trial.memory_bytes)
        outcome += f" [yellow]{escape(text)}[/]" if (text := on_slow_nodes(trial, slow_nodes)) else ""
        table.add_row(*(str(trial.id), trial.configuration.id, outcome, speed, predicted, memory)[shown])
    return table
