"""Defines what a finished session returns: the winner of a search, or the table of a profile."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.study import Study, Trial
from oppa.study.records import SEARCH
from oppa.table import Table, TableRow
from oppa.tuning.equivalence import Equivalence, equivalence
from oppa.tuning.export_best import ExportedBest, write_best
from oppa.tuning.result import Contender, SearchResult, to_json
from oppa.tuning.search import TrialExecutor
from oppa.tuning.verification import SpeedUp


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The winner of a search, verified by fresh repeats in turn with what it is compared with."""

    study: Path
    """Folder of the study, with which a further search goes on."""
    ended: str
    """Reason for which the search ended, in a few words."""
    search: SearchResult
    equivalence: Equivalence | None
    """Comparison of the winner's losses with those of its reference; None if they cannot be compared."""
    exported: ExportedBest
    """The files that run the winner."""
    trials: tuple[Trial, ...]
    """Trials of the search, oldest first."""
    values: Mapping[str, Any]
    """All of it as JSON values, as `oppa tune --json` prints them."""

    @classmethod
    def of(cls, executor: TrialExecutor, found: SearchResult, ended: str) -> "TuneResult":
        """Return the result of a session, and write the winner's files."""
        study, learned = executor.study, equivalence(executor.study, found, executor.problem)
        return cls(
            study=study.folder,
            ended=ended,
            search=found,
            equivalence=learned,
            exported=write_best(study, executor.problem, found.best),
            trials=tuple(trial for trial in study.trials() if trial.purpose == SEARCH),
            values=to_json(study, found, ended, learned),
        )

    @property
    def best(self) -> Contender:
        """Return the winner: its configuration, steps per second and bytes."""
        return self.search.contender(self.search.best)

    @property
    def default(self) -> Contender | None:
        """Return the default configuration, if it is the winner's reference; None if none fits, or the user's baseline is."""
        return self._reference("default")

    @property
    def baseline(self) -> Contender | None:
        """Return the user's baseline, if it is the winner's reference; None if the job has none, or it does not run."""
        return self._reference("baseline")

    @property
    def runner_up(self) -> Contender | None:
        """Return the second; None if only one configuration ran."""
        return self.search.contender(self.search.runner_up) if self.search.runner_up else None

    @property
    def speed_up(self) -> SpeedUp | None:
        """Return the winner's speed-up over its reference, with an interval; None if they are the same, or there is none."""
        return self.search.speed_up

    @property
    def margin(self) -> SpeedUp | None:
        """Return the winner's margin over the runner-up, with an interval."""
        return self.search.margin

    def _reference(self, name: str) -> Contender | None:
        found = self.search.default
        return self.search.contender(found) if found and self.search.usual == name else None


def unfinished(folder: Path, why_ended: str) -> dict[str, Any]:
    """Return the JSON values of a study in which nothing could run."""
    with Study(folder) as study:
        return to_json(study, None, why_ended)


def no_table(folder: Path, why_ended: str) -> dict[str, Any]:
    """Return the JSON values of a profile in which nothing could run."""
    return {"table": str(folder), "ended": why_ended, "rows": []}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """The table of a profile, which is also in its folder."""

    folder: Path
    """Folder of the table and of its study, with which a further profile goes on."""
    ended: str
    """Reason for which the profile ended, in a few words."""
    table: Table
    exhaustive_s: float | None
    """Estimated seconds that trials of all configurations would take; None if they were all due."""

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
