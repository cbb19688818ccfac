"""Profile exhaustively, as COPUS does (appendix D): every candidate once, except those that cannot fit.

Candidates that are predicted to fit come first: the fastest of each batch, then the second fastest of each, and so on. So a table that is
cut short has the best of all batches. Candidates that are predicted not to fit come last, the least memory first. The first one that runs
out of memory rules out the rest.
"""

import math
import statistics
from collections.abc import Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.table.origin import Method
from oppa.tuning.designer import Known, Observation, by_candidate, first_free
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.targets import trial_variance
from oppa.tuning.stopping import StopTest, never


class ExhaustiveProfiling:
    """Implements exhaustive profiling. It expects no loss, so it is complete once no candidate is left."""

    method: Method = "exhaustive"
    bound = loss = None
    satisfied = False

    def __init__(self, problem: Problem, candidates: Candidates) -> None:
        surrogate = Oppa(problem, candidates, seed=0)
        self._pruning = surrogate.pruning
        self._order = _order(surrogate, candidates)
        self._seen: list[Observation] = []

    @property
    def pruned(self) -> int:
        """Return the number of candidates without a trial that are ruled out by one that ran out of memory."""
        return self._pruning.spared

    def stop_test(self, limits: Limits) -> StopTest:
        """Return the test that runs every trial to its end."""
        return never(limits)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the next candidate in order that is not ruled out; None if there is none."""
        return first_free(self._order[~self._pruning.infeasible.numpy()[self._order]], taken)

    def predict(self, candidate: int) -> None:
        """Return None, as every candidate is measured without a prediction."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended, and rule out candidates that cannot fit."""
        self._seen += observations
        self._pruning.learn(observations)

    def assess(self) -> None:
        """Do nothing, as no loss is expected."""

    def seconds_of_all(self) -> None:
        """Return None, as trials of all candidates are due anyway."""

    def known(self) -> list[Known]:
        """Return the entries of a table: all candidates that ran."""
        between = trial_variance(self._seen)
        rows = []
        for candidate, seen in sorted(by_candidate(self._seen).items()):
            rates = [each.log_steps_per_s for each in seen if each.log_steps_per_s is not None]
            if len(rates) == len(seen):
                variance = (between + statistics.fmean(each.log_variance or 0.0 for each in seen)) / len(seen)
                memory = next((each.memory_bytes for each in reversed(seen) if each.memory_bytes), None)
                rows.append(
                    Known(
                        candidate=candidate,
                        log_rate=statistics.fmean(rates),
                        log_stddev=math.sqrt(variance),
                        memory_bytes=memory,
                        measured=True,
                    )
                )
        return rows


def _order(surrogate: Oppa, candidates: Candidates) -> NDArray[np.intp]:
    """Return the numbers of all candidates, in the order of their trials."""
    everything = torch.arange(len(candidates))
    rate, slack = surrogate.log_rate.at(everything).mean.numpy(), surrogate.log_slack.at(everything, bounded=True).mean.numpy()
    fits, batches = slack <= 0, candidates.column("global_batch")
    within = np.lexsort((np.where(fits, -rate, slack), ~fits, batches))
    rank = np.empty(len(candidates), np.int64)
    for batch in np.unique(batches):
        own = within[batches[within] == batch]
        rank[own] = np.arange(len(own))
    return np.lexsort((batches, rank, ~fits))
