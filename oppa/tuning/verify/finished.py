"""Reads what a study has established: its winner, the winner's reference, their repeats, and what they ran on."""

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
from oppa.tuning.result import WinnerComparison, current, repeat_s

WINNER, DATE = "winner", "%Y-%m-%d %H:%M UTC"


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
    def read(cls, folder: Path) -> Self:
        """Read the study in a folder.

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
            found = current(study.trials(), problem.candidates(), problem.limits.repeats, problem.baseline)
        if found is None:
            raise InputError(f"the study `{folder}` has no completed trial", hint="finish it first: `oppa tune` with this study")
        read = cls(folder=folder, problem=problem, found=_compared(found), facts={})
        begun = [facts for facts in sessions if facts.get("date", "") <= read.date]
        return dataclasses.replace(read, facts=(begun or [{}])[-1])

    @property
    def roles(self) -> dict[Configuration, str]:
        """Return the names of the configurations that are measured again: the winner, and its reference if that is another one."""
        reference = self.found.default
        named = {} if reference is None else {reference.configuration: self.found.usual}
        return {**named, self.found.best.configuration: WINNER}

    @property
    def contenders(self) -> dict[Configuration, Trial]:
        """Return the trials that represent these configurations."""
        trials = [trial for trial in (self.found.default, self.found.best) if trial is not None]
        return {trial.configuration: trial for trial in trials}

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

    def round_s(self) -> float:
        """Return the expected seconds of one round: a trial of each configuration."""
        return sum(repeat_s(trial, self.problem) for trial in self.contenders.values())


def require_idle(study: Study, name: str) -> None:
    """Raise StudyError if a trial of a study runs; a tuner that was killed holds none."""
    study.recover()
    if running := study.running():
        trials = ", ".join(str(lease.trial) for lease in running)
        raise StudyError(f"{name} is in use: trial {trials} is running", hint="run this command again when it has ended, or stop it")


def _compared(found: WinnerComparison) -> WinnerComparison:
    """Return the result without the runner-up, which a verification leaves out."""
    kept = {trial.configuration for trial in (found.best, found.default) if trial}
    return dataclasses.replace(found, runner_up=None, repeats={each: own for each, own in found.repeats.items() if each in kept})
