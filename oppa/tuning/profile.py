"""Run `oppa profile`: trials until the table is precise enough, and the table after each of them.

The table is in the study's folder. It is written before each trial and at the end. However a profile ends, it leaves a valid table
that states its origin.
"""

import math
import time
from collections.abc import Sequence, Set
from typing import Protocol

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Prediction, Trial
from oppa.table import Origin, Table, TableRow
from oppa.table.origin import Method
from oppa.tuning.designer import Designer, Known, Observation, short_of_memory
from oppa.tuning.designers.active_profiling import ActiveProfiling, GoodputLoss
from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling
from oppa.tuning.search import search, searched
from oppa.tuning.stopping import StopTest
from oppa.tuning.trial_executor import TrialExecutor

DEFAULT_LOSS = 0.01


class Profiler(Designer, Protocol):
    """Chooses trials as a designer does, and can also report a table."""

    @property
    def method(self) -> Method:
        """Return the name of the method, for the table's origin."""

    @property
    def bound(self) -> float | None:
        """Return the expected loss of goodput, as a share, at which the profile ends; None if it measures all candidates."""

    @property
    def loss(self) -> GoodputLoss | None:
        """Return the expected loss of goodput as last assessed; None if the profiler assesses none, or nothing was measured."""

    @property
    def satisfied(self) -> bool:
        """Return whether the expected loss, as last assessed, is within the bound."""

    @property
    def pruned(self) -> int:
        """Return the number of candidates that are ruled out without a trial."""

    def stop_test(self, limits: Limits) -> StopTest:
        """Return the test that ends trials early."""

    def assess(self) -> None:
        """Assess the expected loss after the last trial."""

    def known(self) -> list[Known]:
        """Return the estimates that make up the table."""

    def seconds_of_all(self) -> float | None:
        """Return the estimated seconds that trials of all candidates would take; None if they are all due anyway."""


class _Kept:
    """Wraps a profiler so that its table is written before each trial."""

    def __init__(self, executor: TrialExecutor, candidates: Candidates, profiler: Profiler, *, command: str, simulated: bool) -> None:
        self._executor, self._candidates, self._profiler = executor, candidates, profiler
        self._command, self._simulated = command, simulated
        self.exhausted = False
        """True if the profiler suggested nothing at its last call."""

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the profiler's suggestion, once the table that led to it is on disk."""
        candidate = self._profiler.suggest(taken)
        self.exhausted = candidate is None
        self.write()
        return candidate

    def reason_to_end(self, skipped: int) -> str:
        """Return why nothing more is suggested."""
        return short_of_memory(skipped)

    def predict(self, candidate: int) -> Prediction | None:
        """Return the profiler's prediction."""
        return self._profiler.predict(candidate)

    def update(self, observations: Sequence[Observation]) -> None:
        """Pass the observations on to the profiler."""
        self._profiler.update(observations)

    def write(self, *, complete: bool = False) -> Table | None:
        """Write the present table to the study's folder, and return it; None before anything was measured."""
        if not (known := self._profiler.known()):
            return None
        study, trials = self._executor.study, searched(self._executor.study.trials())
        origin = Origin.of(
            self._executor.problem,
            simulated=self._simulated,
            study=study.uuid,
            method=self._profiler.method,
            complete=complete,
            loss_bound=self._profiler.bound,
            expected_loss=self._profiler.loss.worst if self._profiler.loss else None,
            candidates=len(self._candidates),
            pruned=self._profiler.pruned,
            trials=len(trials),
            spent_s=sum(trial.seconds for trial in trials),
            command=self._command,
            created_at=time.time(),
        )
        table = Table(rows=tuple(rows(known, self._candidates, trials)), origin=origin)
        table.write(study.folder)
        return table


def profile(
    executor: TrialExecutor, candidates: Candidates, profiler: Profiler, *, command: str, simulated: bool
) -> tuple[Table | None, str]:
    """Run trials until no other is worthwhile or the budget is spent.

    Args:
        command: The command that profiles, for the table's origin.
        simulated: Whether trials are simulated.

    Returns:
        The table, None if nothing was measured; and in a few words what ended the profile.
    """
    kept = _Kept(executor, candidates, profiler, command=command, simulated=simulated)
    reason = search(executor, candidates, kept, profiler.stop_test(executor.problem.limits))
    profiler.assess()
    if profiler.satisfied and kept.exhausted:
        reason = "the expected loss of goodput is within its bound at every noise scale"
    return kept.write(complete=kept.exhausted), reason


def make_profiler(problem: Problem, candidates: Candidates, *, exhaustive: bool, seed: int, bound: float) -> Profiler:
    """Return the profiler that measures every candidate, or the one that measures those that could change a decision.

    Args:
        seed: Seed of random choices.
        bound: Expected loss of goodput, as a share, at which the latter ends.
    """
    return ExhaustiveProfiling(problem, candidates) if exhaustive else ActiveProfiling(problem, candidates, seed=seed, bound=bound)


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
