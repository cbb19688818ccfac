"""Read a study that a search resumes: what is left of its budgets, and what its trials taught."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from oppa.errors import StudyError
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Study, Trial
from oppa.study.database import FILE
from oppa.study.records import VERIFICATION
from oppa.trials.software import require_same
from oppa.tuning.search import searched
from oppa.tuning.spending import spending


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResumedStudy:
    """Holds the state in which a search finds its study."""

    folder: Path
    trials: int
    """Search trials that count."""
    observed: Sequence[Trial]
    """Trials from which a designer learns."""
    left: Limits
    """The problem's limits, less what the study has spent."""

    @classmethod
    def of(cls, folder: Path, problem: Problem, *, simulated: bool) -> Self | None:
        """Return the state of the study in a folder; None if there is none yet.

        Args:
            simulated: The trials are simulated, so their own seconds count in place of those of the sessions.

        Raises:
            StudyError: the folder is the study of another problem, was measured on other software, or cannot be used.
        """
        if folder.exists() and not folder.is_dir():
            raise StudyError(f"`{folder}` is a file, not a folder", hint="name a new folder, or that of a study")
        if not (folder / FILE).exists():
            return None
        with Study(folder) as study:
            study.require_problem(problem.to_dict(), problem.fingerprint)
            require_same(folder, study.problem, problem.software)
            trials = study.trials()
            spent_s = sum(trial.seconds for trial in trials) if simulated else study.spent_s()
            held_hours = spending(study, problem).gpu_hours
        counted = [trial for trial in trials if trial.counts and trial.purpose != VERIFICATION]
        tried = len(searched(counted))
        limits = problem.limits
        return cls(
            folder=folder,
            trials=tried,
            observed=counted,
            left=dataclasses.replace(
                limits,
                trials=None if limits.trials is None else max(0, limits.trials - tried),
                wall_time_s=None if limits.wall_time_s is None else max(0.0, limits.wall_time_s - spent_s),
                max_gpu_hours=None if limits.max_gpu_hours is None else max(0.0, limits.max_gpu_hours - held_hours),
            ),
        )

    @property
    def has_ended(self) -> bool:
        """Return whether a budget of the search is spent."""
        return 0 in (self.left.trials, self.left.wall_time_s, self.left.max_gpu_hours)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {"folder": str(self.folder), "trials": self.trials, "ended": self.has_ended}
