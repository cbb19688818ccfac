"""Show a verification: what it compares, its trials, and its verdict."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.trial_session import resumable
from oppa.cli.views import style
from oppa.cli.views.search_view import SearchView
from oppa.problem.configuration import Configuration
from oppa.study import Study
from oppa.trials.interruption import Interruption
from oppa.tuning.device_budget import limit_in_words
from oppa.tuning.session import Session
from oppa.tuning.spending import in_words, spent_in_words
from oppa.tuning.trial_executor import SearchCallback
from oppa.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from oppa.problem.objective import Objective
    from oppa.tuning.verification import Interval, SpeedUp
    from oppa.tuning.verify.changes import EnvironmentChange
    from oppa.tuning.verify.past import PastVerification
    from oppa.tuning.verify.plan import VerifyPlan
    from oppa.tuning.verify.result import VerifyResult
    from oppa.tuning.verify.verdict import ConfigurationVerdict

STATUS = {
    "passed": "[bold green]passed[/]",
    "regression": "[bold red]regression[/]",
    "inconclusive": "[bold yellow]inconclusive[/]",
    "unfinished": "[dim]unfinished[/]",
}
VERDICTS = {
    "as_fast": "green",
    "faster": "green",
    "slower": "red",
    "unclear": "yellow",
    "no_longer_runs": "red",
    "not_compared": "yellow",
}
TITLE = 9
"""Width of the titles of rows, with the space after them."""
NONE_KNOWN = "nothing that was recorded"


class RoundsView(SearchView):
    """Prints a line for each trial that ended, with the role of its configuration; on a terminal, above a live view of the rounds."""

    def __init__(self, study: Study, interruption: Interruption, plan: "VerifyPlan") -> None:
        self._plan = plan
        super().__init__(study, interruption, plan.setup.problem)

    def _name(self, configuration: Configuration) -> str:
        return f"{self._plan.finished.roles[configuration]:<10}{configuration.id}"

    def _rows(self) -> list[tuple[str, str]]:
        ended = sum(trial.counts for trial in self._study.trials())
        roles = len(self._plan.finished.roles)
        rounds = f"{ended} of {roles * max(self._plan.rounds, math.ceil(ended / roles))} trials"
        return [("trial", self._trial_text()), ("rounds", rounds), ("spent", spent_in_words(self._spending()))]


class VerifyView:
    """Watches the session of a verification; the interface calls it with the session, as a callback."""

    def __init__(self, again: list[str]) -> None:
        """Prepare the view; `again` are the words after `oppa` that continue an interrupted verification."""
        self._again = again
        self.interruption = Interruption()

    @contextlib.contextmanager
    def __call__(self, session: Session) -> Iterator[SearchCallback]:
        """Print what is compared, and yield the view of its trials."""
        plan = session.verification
        assert plan is not None
        print_verify_plan(plan, style.err())
        style.err().print()
        view = RoundsView(session.study, self.interruption, plan)
        with resumable(self._again), view.live:
            yield view


def print_verify_plan(plan: "VerifyPlan", console: "Console") -> None:
    """Print what a verification compares, what changed since the study, and what it is expected to cost."""
    finished, problem = plan.finished, plan.setup.problem
    roles = " and ".join(f"{role} [cyan]{each.id}[/]" for each, role in reversed(finished.roles.items()))
    more = f", up to {plan.most_rounds} while noise leaves the verdict open" if plan.most_rounds > plan.rounds else ""
    cost = in_words(problem.cluster, problem.limits, plan.seconds)
    lines = [
        f"[bold]study[/]    {escape(str(finished.folder))}, measured on {finished.date}",
        f"[bold]again[/]    {roles}, {plan.rounds} rounds in turn{more}",
        f"[bold]cost[/]     {escape(cost)}: about {format_seconds(plan.seconds)}",
        *_changed(plan.changes, unknown=not plan.recorded),
    ]
    if plan.affordable < plan.trials:
        ends = f"the limit of {limit_in_words(problem)} ends it after about {plan.affordable} of {plan.trials} trials"
        lines.insert(3, f"[bold]limit[/]    [yellow]{ends}[/]")
    style.print_rows(console, lines, TITLE)


def print_verdict(found: "VerifyResult", console: "Console") -> None:
    """Print the verdict, both configurations then and now, what changed, and the cost."""
    console.print(f"\n{STATUS[found.status]}: {escape(found.summary)}\n", *_table(found), sep="\n")
    lines = [
        *(f"[bold]failed[/]   {escape(f'{each.cause}; {_trial(found, each)}')}" for each in found.verdicts if each.failed),
        *_changed(found.changes, unknown=not found.recorded),
        *_learned(found),
        f"[bold]spent[/]    {escape(spent_in_words(found.spent))}",
        f"[bold]stored[/]   {escape(str(found.folder))}",
    ]
    style.print_rows(console, lines, TITLE)


def print_past(verifications: "Sequence[PastVerification]") -> None:
    """Print the verifications of a study, oldest first; nothing if there is none."""
    if not verifications:
        return
    table = style.table((">verified", "", "verdict", "changed since the study"))
    for each in verifications:
        colour = STATUS[each.status] if each.status in STATUS else escape(each.status)
        table.add_row(each.date or str(each.number), colour, escape(each.summary), escape("\n".join(each.changed)))
    style.out().print("", table)


def _table(found: "VerifyResult") -> list[str]:
    """Return the configurations, then a line for each of them and for the winner's speed-up, then and now, in columns."""
    from oppa.tuning.verify.verdict import words_of

    rows = [(each.role, _rate(each.then, found.objective), _rate(each.now, found.objective)) for each in found.verdicts]
    verdicts = [_verdict(each, found.objective) for each in found.verdicts]
    if found.reference:
        rows.append((words_of(found.objective)["gain"], _factor(found.speed_up_then), _factor(found.speed_up)))
        verdicts.append("")
    head = (found.objective.unit, "then", "now")
    widths = [max(len(cells[column]) for cells in (head, *rows)) for column in range(3)]
    first, *others = [[f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)] for cells in (head, *rows)]
    lines = [f"[bold]{each.role:<{widths[0]}}[/]  [cyan]{each.configuration.id}[/]" for each in found.verdicts]
    lines += ["", f"[dim]{escape('   '.join(first).rstrip())}[/]"]
    for (name, then, now), verdict in zip(others, verdicts, strict=True):
        lines.append(f"[bold]{name}[/]   {escape(then)}   {escape(now)}   {verdict}".rstrip())
    return [*lines, ""]


def _verdict(each: "ConfigurationVerdict", objective: "Objective") -> str:
    """Return the verdict in its colour; the cause of a failure has a line of its own."""
    text = "no longer runs" if each.verdict == "no_longer_runs" else each.in_words(objective)
    return f"[{VERDICTS[each.verdict]}]{escape(text)}[/]"


def _rate(found: "Interval | None", objective: "Objective") -> str:
    if found is None:
        return "-"
    low, high = sorted(map(objective.of, (found.low, found.high)))
    return f"{style.number(objective.of(found.value))} [{style.number(low)} - {style.number(high)}]"


def _factor(gain: "SpeedUp | None") -> str:
    return "-" if gain is None else f"{gain.ratio.value:.2f}x [{gain.ratio.low:.2f} - {gain.ratio.high:.2f}]"


def _changed(changes: "tuple[EnvironmentChange, ...]", *, unknown: bool) -> list[str]:
    """Return a line for each change; or one that states that there is none, or that the study recorded nothing to compare with."""
    if not changes:
        return [f"[bold]changed[/]  {'unknown: the study did not record its software' if unknown else NONE_KNOWN}"]
    names = ("[bold]changed[/]  ", *["         "] * (len(changes) - 1))
    return [f"{name}{escape(str(change))}" for name, change in zip(names, changes, strict=True)]


def _trial(found: "VerifyResult", each: "ConfigurationVerdict") -> str:
    return str(found.folder / "trials" / each.failed)


def _learned(found: "VerifyResult") -> list[str]:
    """Return a line that compares the winner's losses with those in the study; none if they are not known."""
    if (learned := found.equivalence) is None:
        return []
    if not learned.steps:
        return ["[bold]learns[/]   unknown: no step has a loss here and in the study"]
    differ = f"differ by at most {learned.deviation:.1e}" if math.isfinite(learned.deviation) else "are finite in one run only"
    ours = f"losses of {learned.steps} steps {differ}"
    beyond = f"beyond the tolerance of {learned.tolerance:g}"
    same = "as in the study" if learned.holds else f"[yellow]not as in the study[/], {beyond}"
    if learned.unknown:
        same = f"unknown, as two repeats differ by {learned.own_deviation:.1e}, {beyond}"
    return [f"[bold]learns[/]   {same}: {ours}"]
