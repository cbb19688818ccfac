"""Define what a finished session returns: the winner of a search, or the table of a profile."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.problem.objective import Objective
from oppa.study import Study, Trial
from oppa.study.records import SEARCH
from oppa.table import Table, TableRow
from oppa.tuning.break_even import BreakEven
from oppa.tuning.comparison import Contender, WinnerComparison
from oppa.tuning.equivalence import Equivalence, equivalence
from oppa.tuning.export_best import ExportedBest, write_best
from oppa.tuning.result import break_even, to_json
from oppa.tuning.spending import Spending, spending
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.verification import SpeedUp


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Holds the winner of a search, verified by repeats that alternate with those of its reference."""

    study: Path
    """Folder of the study; a further search resumes it."""
    ended: str
    """Why the search ended, in a few words."""
    search: WinnerComparison
    equivalence: Equivalence | None
    """Comparison of the winner's losses with those of its reference; None if they cannot be compared."""
    exported: ExportedBest
    """The files that run the winner."""
    objective: Objective
    """The maximised quantity, which is throughput or a number that the program prints."""
    trials: tuple[Trial, ...]
    """Trials of the search, oldest first."""
    spent: Spending
    """The time for which all sessions of the study held the devices, and its price."""
    break_even: BreakEven
    """The cost of the search against the time that the winner saves, as measured."""
    values: Mapping[str, Any]
    """The result as JSON values, which `to_dict` returns."""

    @classmethod
    def of(cls, executor: TrialExecutor, found: WinnerComparison, ended: str) -> "SearchResult":
        """Return the result of a session, and write the winner's files."""
        study, learned = executor.study, equivalence(executor.study, found, executor.problem)
        spent = spending(study, executor.problem)
        return cls(
            study=study.folder,
            ended=ended,
            search=found,
            equivalence=learned,
            exported=write_best(study, executor.problem, found.best),
            objective=executor.problem.objective,
            trials=tuple(trial for trial in study.trials() if trial.purpose == SEARCH),
            spent=spent,
            break_even=break_even(found, spent, executor.problem),
            values=to_json(study, found, ended, learned),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, as `oppa tune --json` prints it."""
        return dict(self.values)

    @property
    def best(self) -> Contender:
        """Return the winner: its configuration, steps per second and bytes."""
        return self.search.contender(self.search.best)

    @property
    def default(self) -> Contender | None:
        """Return the default configuration if it is the winner's reference; None if none fits, or the baseline is the reference."""
        return self._reference("default")

    @property
    def baseline(self) -> Contender | None:
        """Return the user's baseline if it is the winner's reference; None if the job has none, or it cannot run."""
        return self._reference("baseline")

    @property
    def runner_up(self) -> Contender | None:
        """Return the second-fastest configuration; None if only one ran."""
        return self.search.contender(self.search.runner_up) if self.search.runner_up else None

    @property
    def speed_up(self) -> SpeedUp | None:
        """Return the winner's speed-up over its reference, with an interval; None without a reference, or if the winner is it."""
        return self.search.speed_up

    @property
    def margin(self) -> SpeedUp | None:
        """Return the winner's margin over the runner-up, with an interval."""
        return self.search.margin

    def _reference(self, name: str) -> Contender | None:
        found = self.search.reference
        return self.search.contender(found) if found and self.search.reference_kind == name else None


def unfinished(folder: Path, why_ended: str) -> dict[str, Any]:
    """Return the JSON values of a study in which no configuration could run."""
    with Study(folder) as study:
        return to_json(study, None, why_ended)


def no_table(folder: Path, why_ended: str) -> dict[str, Any]:
    """Return the JSON values of a profile in which no configuration could run."""
    return {"table": str(folder), "ended": why_ended, "rows": []}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """Holds the table of a profile, as it was written to its folder."""

    folder: Path
    """Folder of the table and of its study; a further profile resumes it."""
    ended: str
    """Why the profile ended, in a few words."""
    table: Table
    exhaustive_s: float | None
    """Estimated seconds of trials of all configurations; None if the profile was exhaustive."""

    @property
    def fastest(self) -> list[TableRow]:
        """Return the fastest row of each global batch, the smallest batch first."""
        rows = self.table.rows
        return [
            max((row for row in rows if row.configuration.global_batch == batch), key=lambda row: row.steps_per_s)
            for batch in self.table.batches
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, as `oppa profile --json` prints it."""
        origin = self.table.origin
        return {
            "table": str(self.folder),
            "ended": self.ended,
            "method": origin.method,
            "complete": origin.complete,
            "expected_loss": origin.expected_loss,
            "trials": origin.trials,
            "seconds": origin.spent_s,
            "candidates": origin.candidates,
            "pruned": origin.pruned,
            "rows": len(self.table.rows),
            "fastest": [
                {
                    "global_batch": row.configuration.global_batch,
                    "configuration": row.configuration.to_dict(),
                    "samples_per_s": row.samples_per_s,
                    "log_stddev": row.log_stddev,
                    "memory_bytes": row.memory_bytes,
                    "source": row.source,
                }
                for row in self.fastest
            ],
        }
