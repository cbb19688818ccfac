"""Show the progress of a study on stderr: a live view on a terminal, one line per trial elsewhere."""

import dataclasses
import time

from rich.console import Group
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
from oppa.units import format_seconds, with_noun

REFRESH_S = 0.2
LOOK_S = 1.0
CAUSE_WIDTH, NAME_WIDTH, SPEED_WIDTH = 70, 26, 21
NEW, AGAIN, PRESENT, DEFAULT, REPEAT = " ", "↻", "●", "○", "✓"
"""Marks of trials: a configuration's first search trial, a further one, the user's baseline, the default, and a verification repeat."""
MARKS = {SEARCH: NEW, BASELINE: DEFAULT, VERIFICATION: REPEAT, DRIFT: AGAIN}
WORDS = {NEW: "", AGAIN: "again ", PRESENT: "the baseline, ", DEFAULT: "finding the default, ", REPEAT: "verifying "}


class SearchView:
    """Prints a line for each trial that ended, whichever tuner of the study ran it.

    On a terminal, these lines scroll by above a live view of the running trial, the incumbent and the budget.
    """

    _IMPROVED = "best so far"

    def __init__(self, study: Study, interruption: Interruption, problem: Problem, configurations: int | None = None) -> None:
        self._study, self._interruption, self._problem = study, interruption, problem
        limit = problem.limits.trials
        self._most = limit if limit and (configurations is None or configurations > limit) else None
        """Number of trials that ends the search; None if the search has no limit, or may run out of configurations before."""
        self.live = Live(console=style.err(), auto_refresh=False, transient=True)
        """The live view, shown inside its context; where stderr is no terminal, it prints nothing."""
        self._looked_at, self._drawn_at = time.monotonic(), 0.0
        self._began_at = time.monotonic() - study.spent_s()
        """The time at which the search would have begun if it had never paused."""
        self._lease: Lease | None = None
        self._started_at = time.monotonic()
        self._times: list[float] = []
        """Step times of the running trial, which started at `_started_at`."""
        self._name_width, self._speed_width = NAME_WIDTH, SPEED_WIDTH
        self._best: tuple[float, str] | None = None
        ended = study.trials()
        self._shown = {trial.id for trial in ended}
        self._searched = [trial.configuration for trial in ended if trial.purpose == SEARCH and trial.counts]
        self._spent: Spending | None = None
        """Spending of the study without the running trial; None until it is shown, as after the end of each trial."""
        for trial in ended:
            self._improves(trial)

    def tick(self) -> None:
        """Show the trials of other tuners, and redraw every REFRESH_S seconds; raise KeyboardInterrupt if the user asked to stop."""
        self._interruption.check()
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._show_ended()
        if time.monotonic() - self._drawn_at >= REFRESH_S:
            self._drawn_at = time.monotonic()
            self._redraw()

    def started(self, lease: Lease) -> None:
        """Show the new trial."""
        self._lease, self._started_at = lease, time.monotonic()
        self._times.clear()
        self.tick()

    def stepped(self, measurement: Measurement) -> None:
        """Record a step, which the next redraw shows."""
        self._times.append(measurement.step_time_s)

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Print the lines of this trial and of others that have ended."""
        self._lease = None
        self._show_ended()
        self._redraw()

    def _show_ended(self) -> None:
        """Print a line for each trial that has ended since the last call."""
        self._looked_at = time.monotonic()
        if new := [trial for trial in self._study.trials() if trial.id not in self._shown]:
            for trial in new:
                style.err().print(self._line(trial))
            self._shown |= {trial.id for trial in new}
            self._spent = None

    def _redraw(self) -> None:
        """Draw the live view again if stderr is a terminal."""
        if style.err().is_terminal:
            rows = (Text.from_markup(f"  [bold]{name:<8}[/]{value}") for name, value in self._rows())
            self.live.update(Group(Text(), *rows), refresh=True)

    def _line(self, trial: Trial) -> str:
        ended = style.outcome(trial.outcome)
        if trial.outcome in MEASURED:
            speed = self._speed(trial.steps_per_s, (trial.variance or 0.0) ** 0.5) if trial.steps_per_s else ""
            comment = f"[bold green]{self._IMPROVED}[/]" if self._improves(trial) else ended if trial.outcome != "completed" else ""
            self._speed_width = max(self._speed_width, len(speed))
            rest = f"{speed:<{self._speed_width}}{style.memory(trial.memory_bytes):>10}  {comment}".rstrip()
        else:
            rest = f"{ended}: {_one_line(trial.cause)}" if trial.cause else ended
        mark = self._mark(trial)  # computed before this trial is added to those searched
        if trial.purpose == SEARCH and trial.counts:
            self._searched.append(trial.configuration)
        name = self._name(trial.configuration)
        self._name_width = max(self._name_width, len(name))  # lines after a long name align with its own, as after a long speed
        return f"{trial.id:4} {mark} {name:<{self._name_width}}  {rest}"

    def _mark(self, trial: Lease | Trial) -> str:
        if trial.purpose == SEARCH and trial.configuration in self._searched:
            return AGAIN
        is_baseline = trial.purpose != VERIFICATION and trial.configuration == self._problem.baseline
        return PRESENT if is_baseline else MARKS[trial.purpose]

    def _improves(self, trial: Trial) -> bool:
        """Return True if a trial is the fastest of the search so far, and keep it as the incumbent."""
        rate = trial.steps_per_s if trial.purpose == SEARCH and trial.outcome == "completed" else None
        if rate is None or (self._best and rate <= self._best[0]):
            return False
        self._best = (rate, self._name(trial.configuration))
        return True

    def _speed(self, rate: float, stddev: float | None = None) -> str:
        """Return the objective of a rate as text, with its unit."""
        objective = self._problem.objective
        return f"{style.objective(objective, rate, stddev)} {escape(objective.unit)}"

    def _name(self, configuration: Configuration) -> str:
        """Return the name under which a configuration is shown."""
        return configuration.id

    def _rows(self) -> list[tuple[str, str]]:
        """Return the names and values of the live view."""
        rows = [("trial", self._trial_text())]
        if self._best:
            rows += [("best", f"{self._best[1]}   [green]{self._speed(self._best[0])}[/]")]
        return [*rows, ("budget", self._budget_text()), ("spent", spent_in_words(self._spending()))]

    def _spending(self) -> Spending:
        """Return what the study has spent, with the running trial, whose first step has not been seen while it starts."""
        known = self._spent = self._spent or spending(self._study, self._problem)
        if self._lease is None:
            return known
        seconds, steps_s = time.monotonic() - self._started_at, sum(self._times)
        startup_s = max(0.0, seconds - steps_s) if self._times else seconds
        return dataclasses.replace(known, startup_s=known.startup_s + startup_s, steps_s=known.steps_s + seconds - startup_s)

    def _trial_text(self) -> str:
        lease = self._lease
        if lease is None:
            return "choosing the next configuration"
        seconds = format_seconds(time.monotonic() - self._started_at)
        speed = f"   {self._speed(estimate(settled(self._times, self._problem.limits.settle)).steps_per_s)}" if len(self._times) > 1 else ""
        what = f"{WORDS[self._mark(lease)]}[cyan]{self._name(lease.configuration)}[/]"
        return f"{lease.trial}  {what}   step {len(self._times)}{speed}   {seconds}"

    def _budget_text(self) -> str:
        limits, elapsed_s = self._problem.limits, time.monotonic() - self._began_at
        ran = f"{len(self._searched)} of {with_noun(self._most, 'trial')}" if self._most else with_noun(len(self._searched), "trial")
        left = f", {format_seconds(max(0.0, limits.wall_time_s - elapsed_s))} left" if limits.wall_time_s else ""
        return f"{ran}   {format_seconds(elapsed_s)} spent{left}"


def _one_line(text: str) -> str:
    """Return the beginning of a cause in one line, with its markup escaped."""
    words = escape(" ".join(text.split()))
    return words if len(words) <= CAUSE_WIDTH else f"{words[: CAUSE_WIDTH - 1]}…"
