"""Runs `oppa profile`: trials until the table is precise enough, and the table after each of them.

The table is in the study's folder. It is written before each trial and at the end. However a profile ends, it leaves a valid table
that states its origin.
"""

import math
import time
from collections.abc import Sequence, Set
from typing import Protocol

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction, Trial
from oppa.table import Origin, Table, TableRow
from oppa.table.origin import Method
from oppa.tuning.designer import Known, Observation
from oppa.tuning.designers.active_profiling import ActiveProfiling, Loss
from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling
from oppa.tuning.search import TrialExecutor, search, searched
from oppa.tuning.stopping import never, until_precise

DEFAULT_LOSS = 0.01


class Profiler(Protocol):
    """A designer that can also report a table."""

    @property
    def pruned(self) -> int:
        """Return the number of candidates that are ruled out without a trial."""
        ...

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the next candidate, like `Designer.suggest`."""
        ...

    def predict(self, candidate: int) -> Prediction | None:
        """Return the prediction for a candidate, like `Designer.predict`."""
        ...

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from trials that ended, like `Designer.update`."""
        ...

    def known(self) -> list[Known]:
        """Return the estimates that make up the table."""
        ...


class Keeper:
    """Writes the table of a session."""

    def __init__(
        self, executor: TrialExecutor, candidates: Candidates, profiler: Profiler, *, bound: float, command: str, simulated: bool
    ) -> None:
        self._executor, self._candidates, self._profiler = executor, candidates, profiler
        self._bound, self._command, self._simulated = bound, command, simulated

    def table(self, *, complete: bool) -> Table | None:
        """Return the present table; None before anything was measured."""
        trials = searched(self._executor.study.trials())
        if not (known := self._profiler.known()):
            return None
        method: Method = "active" if isinstance(self._profiler, ActiveProfiling) else "exhaustive"
        loss = loss_of(self._profiler)
        origin = Origin.of(
            self._executor.problem,
            simulated=self._simulated,
            study=self._executor.study.uuid,
            method=method,
            complete=complete,
            loss_bound=self._bound if method == "active" else None,
            expected_loss=loss.worst if loss else None,
            candidates=len(self._candidates),
            pruned=self._profiler.pruned,
            trials=len(trials),
            spent_s=sum(trial.seconds for trial in trials),
            command=self._command,
            created_at=time.time(),
        )
        return Table(rows=tuple(rows(known, self._candidates, trials)), origin=origin)

    def write(self, *, complete: bool = False) -> Table | None:
        """Write the present table to the study's folder, and return it."""
        table = self.table(complete=complete)
        if table is not None:
            table.write(self._executor.study.folder)
        return table


class Kept:
    """Wraps a profiler so that its table is written before each trial."""

    def __init__(self, profiler: Profiler, keeper: Keeper) -> None:
        self._profiler, self._keeper = profiler, keeper
        self.exhausted = False
        """True if the profiler suggested nothing at its last call."""

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the profiler's suggestion, once the table that led to it is on disk."""
        candidate = self._profiler.suggest(taken)
        self.exhausted = candidate is None
        self._keeper.write()
        return candidate

    def predict(self, candidate: int) -> Prediction | None:
        """Return the profiler's prediction."""
        return self._profiler.predict(candidate)

    def update(self, observations: Sequence[Observation]) -> None:
        """Pass the observations on to the profiler."""
        self._profiler.update(observations)


def profile(executor: TrialExecutor, candidates: Candidates, profiler: Profiler, keeper: Keeper) -> tuple[Table | None, str]:
    """Run trials until no other is worthwhile or the budget is spent.

    Returns:
        The table, None if nothing was measured; and in a few words what ended the profile.
    """
    rule = (never if isinstance(profiler, ExhaustiveProfiling) else until_precise)(executor.problem.limits)
    kept = Kept(profiler, keeper)
    reason = search(executor, candidates, kept, rule)
    if isinstance(profiler, ActiveProfiling):
        profiler.assess()
        if profiler.satisfied and kept.exhausted:
            reason = "the expected loss of goodput is within its bound at every noise scale"
    return keeper.write(complete=kept.exhausted), reason


def make_profiler(problem: Problem, candidates: Candidates, *, exhaustive: bool, seed: int, bound: float) -> Profiler:
    """Return the profiler that measures every candidate, or the one that measures those that could change a decision.

    Args:
        seed: Seed of random choices.
        bound: Expected loss of goodput, as a share, at which the latter ends.
    """
    return ExhaustiveProfiling(problem, candidates) if exhaustive else ActiveProfiling(problem, candidates, seed=seed, bound=bound)


def seconds_of_all(profiler: Profiler) -> float | None:
    """Return the estimated seconds that trials of all candidates would take; None if they are all due anyway."""
    return profiler.seconds_of_all() if isinstance(profiler, ActiveProfiling) else None


def rows(known: Sequence[Known], candidates: Candidates, trials: Sequence[Trial]) -> list[TableRow]:
    """Return the rows of a table for a profile's estimates, with the ids of their trials."""
    own: dict[int, list[int]] = {}
    for trial in trials:
        own.setdefault(candidates.index_of(trial.configuration), []).append(trial.id)
    return [
        TableRow(
            configuration=candidates.configuration(each.candidate),
            steps_per_s=math.exp(each.log_rate),
            log_stddev=each.log_stddev,
            memory_bytes=each.memory_bytes,
            source="measured" if each.measured else "predicted",
            trials=tuple(own.get(each.candidate, ())) if each.measured else (),
        )
        for each in known
    ]


def loss_of(profiler: Profiler) -> Loss | None:
    """Return the expected loss as last assessed; None if the profiler assesses none."""
    return profiler.loss if isinstance(profiler, ActiveProfiling) else None
