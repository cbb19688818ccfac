"""Decide which changes are open to a trainer: by what it declares, and by the bounds that the user sets in [train]."""

import dataclasses

from oppa.control.reach import outside, way_of
from oppa.errors import InputError, JobError, TableError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.protocol.messages import Reach
from oppa.table.rows import ParallelStrategy
from oppa.table.table import Table

HOUR_S = 3600.0


def open_rows(table: Table, present: Configuration, reach: Reach) -> Table:
    """Return the rows of a table that a trainer can reach; the present configuration stays.

    A row that takes a restart for its micro-batch alone is left out if the trainer can have its batch without one.

    Raises:
        TableError: no row is left.
    """
    within = (row for row in table.rows if row.configuration == present or not outside(row.configuration, reach))
    ways = {row: way for row in within if (way := way_of(present, row.configuration, reach)) is not None}
    present_one = ParallelStrategy.of(present)
    live = {row.configuration.global_batch for row, way in ways.items() if way == "live"}
    rows = tuple(
        row for row, way in ways.items() if way == "live" or row.configuration.global_batch not in live or row.strategy != present_one
    )
    if not rows:
        raise TableError(
            f"the table has no row that the trainer can reach from `{present.id}`: {reach.text}",
            hint="add abilities to `open_run`, widen `least_batch` and `largest_batch` in [train], or profile this configuration",
        )
    return dataclasses.replace(table, rows=rows)


def frozen_ranges(text: str) -> tuple[range, ...]:
    """Return the samples of `0..2000,9000..10000`, in which nothing changes; raises JobError for another form."""
    found = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, last = (whole_number(each) for each in (part.partition("..")[0], part.partition("..")[2]))
        if first is None or last is None or first >= last:
            message = f"`frozen = {clipped(repr(text))}` has `{clipped(part)}`, which is no range of samples"
            raise JobError(message, hint='write `frozen = "0..2000,9000..10000"`')
        found.append(range(first, last))
    return tuple(found)


def require_bounds(options: RunOptions, *, own: bool) -> None:
    """Check the bounds of [train].

    Args:
        own: The job trains the user's own trainer, for which alone the bounds are.

    Raises:
        InputError: a bound is not a bound, or has no effect.
    """
    frozen_ranges(options.frozen)
    least, most = options.least_batch, options.largest_batch
    if least is not None and most is not None and least > most:
        raise JobError(f"`least_batch = {least}` is more than `largest_batch = {most}`", hint="exchange them")
    given = {name: getattr(options, name) for name in ("advise", "least_batch", "largest_batch", "changes_per_hour")}
    given |= {"frozen": options.frozen or None, "preemption_grace": options.preemption_grace_s}
    named = [name for name, value in given.items() if value is not None]
    if named and not own:
        hint = "remove it, or give the launch line of your own trainer after `--`"
        raise InputError(f"`{named[0]}` in [train] has no effect on the built-in trainer", hint=hint)


class ChangeLimits:
    """Holds back decisions in frozen phases, and beyond the user's number of changes in an hour."""

    def __init__(self, options: RunOptions) -> None:
        self._frozen, self._per_hour = frozen_ranges(options.frozen), options.changes_per_hour
        self._changed_s: list[float] = []

    def changed(self, now_s: float) -> None:
        """Count a change that was made at this Unix time."""
        self._changed_s = [*(each for each in self._changed_s if each > now_s - HOUR_S), now_s]

    def frozen(self, samples: int) -> str:
        """Return which phase freezes a run after these samples; empty if none does."""
        phase = next((phase for phase in self._frozen if samples in phase), None)
        return f"samples {phase.start} to {phase.stop} are frozen" if phase else ""

    def next_frozen(self, samples: int) -> int | None:
        """Return the samples after which the next frozen phase begins; None if none follows."""
        return min((phase.start for phase in self._frozen if phase.start > samples), default=None)

    def held_back(self, samples: int, now_s: float) -> str:
        """Return why a change after these samples, at this Unix time, is held back; empty if it is not."""
        if why := self.frozen(samples):
            return why
        recent = sum(each > now_s - HOUR_S for each in self._changed_s)
        if self._per_hour is not None and recent >= self._per_hour:
            return f"`changes_per_hour = {self._per_hour:g}` were made within the last hour"
        return ""
