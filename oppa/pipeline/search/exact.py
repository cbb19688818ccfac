"""Prove the minimum of the longest span by constraint programming (OR-Tools' CP-SAT), for graphs of about a hundred actions.

An action is an interval. Intervals of one rank do not overlap, and the memory that they hold is a reservoir. The solver requires small
whole numbers. Times and memory are counted in their greatest common divisor if they have one, else in small steps. Memory is then rounded
down, so that no schedule that fits is excluded, and the bound holds for all of them.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from oppa.pipeline.execution import execute
from oppa.pipeline.graph import BACKWARD, WEIGHT
from oppa.pipeline.search.task import TOLERANCE, Lists, ScheduleTask

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

STEPS, UNITS = 20_000, 1_000_000
"""Largest number of time steps in the busiest rank's work, and of memory units in the largest limit."""
FINEST = 1000
"""Largest denominator at which a value counts as an exact fraction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """Holds the result of the solver."""

    lists: list[list[int]]
    """Shortest schedule found, as lists of codes; the initial one if the solver found none."""
    least_s: float
    """Lower bound of every schedule's longest span, in seconds."""
    proven: bool
    """The solver proved its schedule optimal, up to the rounding of times."""


def prove(task: ScheduleTask, lists: Lists, *, seconds: float) -> Proof:
    """Search for schedules shorter than the given lists, until there are none or the time is over.

    The solver may let a rank begin later than it could. Its span can then be shorter than that of the same schedule in `execute`.

    Args:
        lists: Lists of codes to begin with.
        seconds: Time limit of the solver.

    Raises:
        ImportError: OR-Tools is not installed.
    """
    from ortools.sat.python import cp_model

    program = _Program(task, cp_model.CpModel())
    program.hint(lists)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers, solver.parameters.random_seed = seconds, 1, 0
    status = solver.solve(program.model)
    least_s = max((solver.best_objective_bound - program.rounding) / program.per_second, max(task.busy_s))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Proof([list(codes) for codes in lists], least_s, proven=False)
    found = program.lists(solver)
    if not all(task.fits(rank, codes) for rank, codes in enumerate(found)):  # by less than the rounding of memory
        return Proof([list(codes) for codes in lists], least_s, proven=False)
    return Proof(found, least_s, proven=status == cp_model.OPTIMAL)


class _Program:
    """Builds the CP-SAT model of a task."""

    def __init__(self, task: ScheduleTask, model: "CpModel") -> None:
        self.task, self.model = task, model
        self.per_second = _per_one([*task.durations_s, *task.lags_s], max(task.busy_s), STEPS)
        self._durations, self._lags = ([round(seconds * self.per_second) for seconds in each] for each in (task.durations_s, task.lags_s))
        every = zip([*task.durations_s, *task.lags_s], [*self._durations, *self._lags], strict=True)
        self.rounding = sum(max(steps - seconds * self.per_second, 0.0) for seconds, steps in every) * task.shape.micro_batches
        """Largest number of steps by which rounding can lengthen a schedule."""
        turns = range(task.shape.micro_batches)
        horizon = len(turns) * (sum(self._durations) + sum(self._lags)) + 1
        self._starts = [[model.new_int_var(0, horizon, "") for _ in turns] for _ in self._durations]
        self._span = model.new_int_var(0, horizon, "span")
        self._keep_dependencies()
        for rank in range(task.shape.ranks):
            self._keep_apart(rank)
            self._keep_limit(rank)
        model.minimize(self._span)

    def hint(self, lists: Lists) -> None:
        """Give the solver these lists as its initial solution."""
        executed = execute(self.task.schedule(lists), self.task.times)
        for span in executed.spans():
            self.model.add_hint(self._starts[self.task.code(span.action)][span.action.micro_batch], round(span.start_s * self.per_second))

    def lists(self, solver: Any) -> list[list[int]]:
        """Return the lists of codes that the solver found."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.task.shape.ranks)]
        for code, starts in enumerate(self._starts):
            for turn, start in enumerate(starts):
                found[self.task.rank_of[code]].append((solver.value(start), turn, code))
        return [[code for _, _, code in sorted(intervals)] for intervals in found]

    def _keep_dependencies(self) -> None:
        for code, starts in enumerate(self._starts):
            for earlier, later in itertools.pairwise(starts):
                self.model.add(later >= earlier + self._durations[code])
            if (need := self.task.needs[code]) >= 0:
                for mine, theirs in zip(starts, self._starts[need], strict=True):
                    self.model.add(mine >= theirs + self._durations[need] + self._lags[code])

    def _keep_apart(self, rank: int) -> None:
        model, stages = self.model, self.task.shape.stages
        codes = [code for code, holder in enumerate(self.task.rank_of) if holder == rank]
        intervals = [model.new_fixed_size_interval_var(start, self._durations[code], "") for code in codes for start in self._starts[code]]
        model.add_no_overlap(intervals)
        first = self._starts[self.task.stages_of[rank][0]][0]
        for code in codes:
            if code >= 2 * stages:
                model.add(self._span >= self._starts[code][-1] + self._durations[code] - first)
        model.add(self._span >= sum(self._durations[code] for code in codes) * self.task.shape.micro_batches)

    def _keep_limit(self, rank: int) -> None:
        task, stages = self.task, self.task.shape.stages
        units = _per_one([*task.held, *task.changes[2 * stages :], *task.working, *task.limits], max(task.limits), UNITS)
        held = {stage: _floor(task.held[stage] * units) for stage in task.stages_of[rank]}
        limit = math.floor((task.limits[rank] + TOLERANCE) * units)
        times, changes = list[Any](), list[int]()
        for stage, amount in held.items():
            kept = min(_floor(-task.changes[2 * stages + stage] * units), amount)
            peak = max(_floor(task.working[stage] * units), amount)
            times += self._starts[stage]
            changes += [peak] * task.shape.micro_batches
            if peak > amount:
                times += [begin + self._durations[stage] for begin in self._starts[stage]]
                changes += [amount - peak] * task.shape.micro_batches
            for code, freed in ((BACKWARD * stages + stage, amount - kept), (WEIGHT * stages + stage, kept)):
                working = _floor(task.working[code] * units)
                for begin in self._starts[code]:
                    times += [begin, begin + self._durations[code]]
                    changes += [working, -working - freed]
        if sum(held.values()) * task.shape.micro_batches + _floor(task.reserve[rank] * units) > limit:
            self.model.add_reservoir_constraint(times, changes, 0, limit)


def _per_one(values: Sequence[float], whole: float, most: int) -> float:
    """Return the number of steps per unit: as few as make all values whole numbers, and at most `most` in `whole`."""
    fractions = [Fraction(abs(value)).limit_denominator(FINEST) for value in values if value]
    exact = all(abs(fraction - abs(value)) <= TOLERANCE * whole for fraction, value in zip(fractions, filter(None, values), strict=True))
    if exact and fractions:
        denominator = math.lcm(*(fraction.denominator for fraction in fractions))
        steps = denominator / math.gcd(*(int(fraction * denominator) for fraction in fractions))
        if steps * whole <= most:
            return steps
    return most / whole


def _floor(amount: float) -> int:
    return math.floor(amount + TOLERANCE)
