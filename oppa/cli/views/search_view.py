"""Show the progress of a study on stderr: a live view on a terminal, one line per trial elsewhere."""

import dataclasses
import time
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from oppa.cli.views import style
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Lease, Study, Trial
from oppa.study.records import BASELINE, DRIFT, MEASURED, SEARCH, VERIFICATION
from oppa.trials.interruption import Interruption
from oppa.trials.throughput import estimate, settled
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Measurement
from oppa.tuning.spending import Spending, spending, spent_in_words
from oppa.units import format_seconds

REFRESH_S = 0.2
LOOK_S = 1.0
CAUSE_WIDTH, NAME_WIDTH = 70, 36
NEW, AGAIN, PRESENT, DEFAULT, REPEAT = " ", "↻", "●", "○", "✓"
"""Marks of trials: a configuration's first search trial, a further one, the user's baseline, the default, and a verification repeat."""
MARKS = {SEARCH: NEW, BASELINE: DEFAULT, VERIFICATION: REPEAT, DRIFT: AGAIN}
WORDS = {NEW: "", AGAIN: "again ", PRESENT: "the baseline, ", DEFAULT: "finding the default, ", REPEAT: "verifying "}


class PlainSearchView:
    """Prints one line per trial that ended, whichever tuner of the study ran it."""

    def __init__(self, study: Study, interruption: Interruption, problem: Problem) -> None:
        self._study = study
        self._interruption = interruption
        self._baseline, self._objective = problem.baseline, problem.objective
        self._best: tuple[float, str] | None = None
        ended = study.trials()
        self._shown = {trial.id for trial in ended}
        self._name_width = NAME_WIDTH
        self._looked_at = time.monotonic()
        self._searched = {trial.configuration for trial in ended if trial.purpose == SEARCH and trial.counts}
        for trial in ended:
            if trial.purpose == SEARCH and trial.feasible:
                self._improves(trial.steps_per_s, trial.configuration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tick(self) -> None:
        """Raise KeyboardInterrupt if the user asked to stop; show the trials of other tuners."""
        self._interruption.check()
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._show_ended()

    def started(self, lease: Lease) -> None:
        """Print nothing: a trial has one line, after its end."""

    def stepped(self, measurement: Measurement) -> None:
        """Print nothing: a trial has one line, after its end."""

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Print the lines of this trial and of others that have ended."""
        self._show_ended()

    def _show_ended(self) -> list[Trial]:
        """Print a line for each trial that has ended since the last call, and return these trials."""
        self._looked_at = time.monotonic()
        new = [trial for trial in self._study.trials() if trial.id not in self._shown]
        for trial in new:
            style.err().print(self._line(trial))
        self._shown |= {trial.id for trial in new}
        return new

    def _line(self, trial: Trial) -> str:
        counts = trial.purpose == SEARCH and trial.outcome == "completed"
        improved = counts and self._improves(trial.steps_per_s, trial.configuration)
        speed = self._speed(trial.steps_per_s, (trial.variance or 0.0) ** 0.5) if trial.steps_per_s else ""
        rest = f"{speed:<22}{style.memory(trial.memory_bytes):>9}" if trial.outcome in MEASURED else _one_line(trial.cause)
        kind = self._mark(trial)  # computed before this trial is added to them
        self._searched |= {trial.configuration} if trial.purpose == SEARCH and trial.counts else set()
        outcome = style.outcome(trial.outcome) + " " * (17 - len(trial.outcome))
        mark = "   [bold green]best so far[/]" if improved else ""
        name = self._name(trial.configuration)
        self._name_width = max(self._name_width, len(name))  # lines after a long name align with its own
        return f"{trial.id:4} {kind} {name:<{self._name_width}} {outcome}{rest}{mark}"

    def _mark(self, trial: Lease | Trial) -> str:
        if trial.purpose == SEARCH and trial.configuration in self._searched:
            return AGAIN
        return PRESENT if trial.purpose != VERIFICATION and trial.configuration == self._baseline else MARKS[trial.purpose]

    def _improves(self, steps_per_s: float | None, configuration: Configuration) -> bool:
        if steps_per_s is None or (self._best and steps_per_s <= self._best[0]):
            return False
        self._best = (steps_per_s, self._name(configuration))
        return True

    def _speed(self, rate: float, stddev: float | None = None) -> str:
        """Return the objective of a rate as text, with its unit."""
        return f"{style.objective(self._objective, rate, stddev)} {escape(self._objective.unit)}"

    def _name(self, configuration: Configuration) -> str:
        """Return the name under which a configuration is shown."""
        return configuration.id


class LiveSearchView(PlainSearchView):
    """Shows the trials' lines, which scroll by, above a live view of the running trial, the incumbent and the budget."""

    def __init__(self, study: Study, interruption: Interruption, problem: Problem) -> None:
        super().__init__(study, interruption, problem)
        self._budget = problem.limits.trials, problem.limits.wall_time_s
        self._problem = problem
        self._held = spending(study, problem)
        self._live = Live(console=style.err(), auto_refresh=False, transient=True)
        self._drawn_at = 0.0
        self._lease: Lease | None = None
        self._started_at = time.monotonic()
        self._times: list[float] = []
        self._spent = (study.spent_s(), time.monotonic())
        self._done = sum(trial.purpose == SEARCH and trial.counts for trial in study.trials())

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tick(self) -> None:
        """Redraw every REFRESH_S seconds; raise KeyboardInterrupt if the user asked to stop."""
        super().tick()
        if time.monotonic() - self._drawn_at >= REFRESH_S:
            self._drawn_at = time.monotonic()
            self._live.update(self._view(), refresh=True)

    def started(self, lease: Lease) -> None:
        """Show the new trial."""
        self._lease, self._started_at = lease, time.monotonic()
        self._times.clear()
        self.tick()

    def stepped(self, measurement: Measurement) -> None:
        """Record a step, which the next redraw shows."""
        self._times.append(measurement.step_time_s)

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Print the trial's line above the live view."""
        self._lease = None
        super().ended(lease, result)
        self._live.update(self._view(), refresh=True)

    def _show_ended(self) -> list[Trial]:
        new = super()._show_ended()
        self._done += sum(trial.purpose == SEARCH and trial.counts for trial in new)
        if new:
            self._held = spending(self._study, self._problem)
        return new

    def _view(self) -> RenderableType:
        return Group(Text(), *(Text.from_markup(f"  [bold]{name:<8}[/]{value}") for name, value in self._rows()))

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("trial", self._trial_text())]
        if self._best:
            rows += [("best", f"{self._best[1]}   [green]{self._speed(self._best[0])}[/]")]
        return [*rows, ("budget", self._budget_text()), ("spent", spent_in_words(self._spending()))]

    def _spending(self) -> Spending:
        """Return what the study has spent, with the running trial, whose first step has not been seen while it starts."""
        if self._lease is None:
            return self._held
        seconds, steps_s = time.monotonic() - self._started_at, sum(self._times)
        startup_s = max(0.0, seconds - steps_s) if self._times else seconds
        return dataclasses.replace(self._held, startup_s=self._held.startup_s + startup_s, steps_s=self._held.steps_s + seconds - startup_s)

    def _trial_text(self) -> str:
        lease = self._lease
        if lease is None:
            return "choosing the next configuration"
        seconds = format_seconds(time.monotonic() - self._started_at)
        speed = f"   {self._speed(estimate(settled(self._times, self._problem.limits.settle)).steps_per_s)}" if len(self._times) > 1 else ""
        what = f"{WORDS[self._mark(lease)]}[cyan]{self._name(lease.configuration)}[/]"
        return f"{lease.trial}  {what}   step {len(self._times)}{speed}   {seconds}"

    def _budget_text(self) -> str:
        trials, wall_time_s = self._budget
        spent, since = self._spent
        elapsed = spent + time.monotonic() - since
        count = f"{self._done} of {trials} trials" if trials else f"{self._done} trials"
        left = f", {format_seconds(max(0.0, wall_time_s - elapsed))} left" if wall_time_s else ""
        return f"{count}   {format_seconds(elapsed)} spent{left}"


def _one_line(text: str) -> str:
    """Return the beginning of a cause in one line, with its markup escaped."""
    words = escape(" ".join(text.split()))
    return words if len(words) <= CAUSE_WIDTH else f"{words[: CAUSE_WIDTH - 1]}…"
