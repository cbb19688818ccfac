"""Read what a study has established: its winner, the winner's reference, their repeats, and what they ran on."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from oppa.errors import InputError, StudyError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.table.files import CSV
from oppa.trials.software import require_folder
from oppa.tuning.comparison import WinnerComparison, compare_contenders, contenders
from oppa.tuning.winner import repeat_s

WINNER, RUNNER_UP, DATE = "winner", "runner-up", "%Y-%m-%d %H:%M UTC"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStudy:
    """Holds a study whose winner is known."""

    folder: Path
    problem: Problem
    """The problem as it was stored, with the software of the trials."""
    found: WinnerComparison
    facts: Mapping[str, str]
    """Facts of the session that measured the winner last: its command, versions and hardware; empty if it recorded none."""

    @classmethod
    def read(cls, folder: Path, *, runner_up: bool = False) -> Self:
        """Read the study in a folder.

        Args:
            runner_up: The runner-up is measured again, too.

        Raises:
            StudyError: the folder has no study, a trial of the study runs, or its launch line names files in another folder.
            InputError: the folder holds a table, or no configuration has completed.
        """
        if (folder / CSV).exists():
            hint = "name the folder of a study of `oppa tune`; `oppa profile` measures a table again"
            raise InputError(f"`{folder}` holds a table, which has no winner", hint=hint)
        with Study(folder) as study:
            require_idle(study, f"the study `{folder}`")
            problem, sessions = study.problem, study.sessions()
            require_folder(problem)
            found = compare_contenders(study.trials(), problem.candidates(), problem.limits.repeats, problem.baseline)
        if found is None:
            raise InputError(f"the study `{folder}` has no completed trial", hint="finish it first: `oppa tune` with this study")
        read = cls(folder=folder, problem=problem, found=found if runner_up else _without_runner_up(found), facts={})
        begun = [facts for facts in sessions if facts.get("date", "") <= read.date]
        return dataclasses.replace(read, facts=(begun or [{}])[-1])

    @property
    def roles(self) -> dict[Configuration, str]:
        """Return the names of the configurations that are measured again: the winner last, before it those that it is compared with."""
        named = ((self.found.runner_up, RUNNER_UP), (self.found.reference, self.found.reference_kind), (self.found.best, WINNER))
        return {trial.configuration: name for trial, name in named if trial is not None}

    @property
    def contenders(self) -> dict[Configuration, Trial]:
        """Return the trials that represent these configurations."""
        return {trial.configuration: trial for trial in reversed(contenders(self.found))}

    @property
    def date(self) -> str:
        """Return when the winner was measured last, as sessions state their dates."""
        measured = self.found.repeats_of(self.found.best) or (self.found.best,)
        return datetime.fromtimestamp(measured[-1].started_at, UTC).strftime(DATE)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts on which the repeats ran, or the trials where there are no repeats."""
        ran = [trial for own in self.found.repeats.values() for trial in own] or list(self.contenders.values())
        return tuple(sorted({host for trial in ran for host in trial.hosts}))

    def round_s(self, problem: Problem) -> float:
        """Return the expected seconds of one round, which is a trial of each configuration, within the limits of a problem."""
        return sum(repeat_s(trial, problem) for trial in self.contenders.values())


def require_idle(study: Study, name: str) -> None:
    """Raise StudyError if a trial of a study runs; a tuner that was killed holds none."""
    study.recover()
    if running := study.running():
        trials = ", ".join(str(lease.trial) for lease in running)
        raise StudyError(f"{name} is in use: trial {trials} is running", hint="run this command again when it has ended, or stop it")


def _without_runner_up(found: WinnerComparison) -> WinnerComparison:
    """Return the result without the runner-up, which a verification leaves out unless it is asked for."""
    kept = {trial.configuration for trial in (found.best, found.reference) if trial}
    return dataclasses.replace(found, runner_up=None, repeats={each: own for each, own in found.repeats.items() if each in kept})
