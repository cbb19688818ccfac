"""The loop of `oppa profile`: trials until the table is known well enough, and the table after each of them.

The table lies in the study's folder. It is written before each trial and at the end, so a profile that ends in whatever way leaves one that
holds, and says what it rests on.
"""

import math
import time
from collections.abc import Sequence, Set
from typing import Protocol

from oppa.problem.candidates import Candidates
from oppa.study import Prediction, Trial
from oppa.table import Origin, Row, Table
from oppa.table.origin import Method
from oppa.tuning.designer import Known, Observation
from oppa.tuning.designers.active import Active, Loss
from oppa.tuning.designers.complete import Complete
from oppa.tuning.search import Sitting, search, searched
from oppa.tuning.stopping import never, precise

DEFAULT_LOSS = 0.01


class Profiler(Protocol):
    """A designer that knows a table."""

    @property
    def pruned(self) -> int:
        """Candidates that are ruled out without a trial."""
        ...

    def suggest(self, taken: Set[int]) -> int | None:
        """As a designer."""
        ...

    def predict(self, candidate: int) -> Prediction | None:
        """As a designer."""
        ...

    def update(self, observations: Sequence[Observation]) -> None:
        """As a designer."""
        ...

    def known(self) -> list[Known]:
        """What the table has."""
        ...


class Keeper:
    """Writes the table of a sitting."""

    def __init__(self, sitting: Sitting, candidates: Candidates, profiler: Profiler, *, bound: float, command: str, imitated: bool) -> None:
        self._sitting, self._candidates, self._profiler = sitting, candidates, profiler
        self._bound, self._command, self._imitated = bound, command, imitated

    def table(self, *, complete: bool) -> Table | None:
        """What is known now; None before anything was measured."""
        trials = searched(self._sitting.study.trials())
        if not (known := self._profiler.known()):
            return None
        method, loss = _method(self._profiler), loss_of(self._profiler)
        origin = Origin.of(
            self._sitting.problem,
            imitated=self._imitated,
            study=self._sitting.study.uuid,
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
        """Put it into the study's folder."""
        table = self.table(complete=complete)
        if table is not None:
            table.write(self._sitting.study.folder)
        return table


class Kept:
    """A profiler whose table is written before each trial."""

    def __init__(self, profiler: Profiler, keeper: Keeper) -> None:
        self._profiler, self._keeper = profiler, keeper
        self.exhausted = False
        """It had nothing more to suggest."""

    def suggest(self, taken: Set[int]) -> int | None:
        """The profiler's, with the table of what led to it on disk."""
        candidate = self._profiler.suggest(taken)
        self.exhausted = candidate is None
        self._keeper.write()
        return candidate

    def predict(self, candidate: int) -> Prediction | None:
        """The profiler's."""
        return self._profiler.predict(candidate)

    def update(self, observations: Sequence[Observation]) -> None:
        """To the profiler."""
        self._profiler.update(observations)


def profile(sitting: Sitting, candidates: Candidates, profiler: Profiler, keeper: Keeper) -> tuple[Table | None, str]:
    """Run trials until nothing is worth one or the budget is spent; the table, None where nothing ran, and in a few words what ended it."""
    rule = (never if isinstance(profiler, Complete) else precise)(sitting.problem.limits)
    kept = Kept(profiler, keeper)
    reason = search(sitting, candidates, kept, rule)
    if isinstance(profiler, Active):
        profiler.assess()
        if profiler.satisfied and kept.exhausted:
            reason = "the expected loss of goodput is within its bound at every noise scale"
    return keeper.write(complete=kept.exhausted), reason


def rows(known: Sequence[Known], candidates: Candidates, trials: Sequence[Trial]) -> list[Row]:
    """The rows of a table."""
    own: dict[int, list[int]] = {}
    for trial in trials:
        own.setdefault(candidates.index_of(trial.configuration), []).append(trial.id)
    return [
        Row(
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
    """The expected loss as it was last assessed; None of what has none."""
    return profiler.loss if isinstance(profiler, Active) else None


def _method(profiler: Profiler) -> Method:
    return "active" if isinstance(profiler, Active) else "exhaustive"
