"""Define what a verification returns: the verdicts, what changed since the study, and what it has spent."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from oppa.problem.objective import Objective
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.tuning.break_even import REFERENCES
from oppa.tuning.comparison import WinnerComparison
from oppa.tuning.equivalence import Equivalence, compare, losses
from oppa.tuning.result import trial_json
from oppa.tuning.spending import Spending, spending
from oppa.tuning.verification import SpeedUp
from oppa.tuning.verify.changes import EnvironmentChange, moved
from oppa.tuning.verify.finished import DATE, RUNNER_UP, WINNER, FinishedStudy
from oppa.tuning.verify.plan import VerifyPlan
from oppa.tuning.verify.verdict import ConfigurationVerdict, difference, overtaken

Status = Literal["passed", "regression", "inconclusive"]
OPEN = ("unclear", "not_compared")
"""Verdicts that leave open whether a configuration became slower."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """Holds the verdicts on the winner of a study and what it is compared with, all measured again in turn."""

    study: Path
    number: int
    folder: Path
    """Folder of the verification, below that of the study."""
    date: str
    """Date and minute at which it ended, in UTC."""
    measured: str
    """When the study measured its winner."""
    margin: float
    winner: ConfigurationVerdict
    reference: ConfigurationVerdict | None
    """The verdict on the baseline, or on the default where the job has no baseline; None if the winner is the reference."""
    runner_up: ConfigurationVerdict | None
    """The verdict on the runner-up; None if it was not measured again."""
    speed_up_then: SpeedUp | None
    """The winner's speed-up over the reference in the study."""
    speed_up: SpeedUp | None
    """The same in the verification; None if either has fewer than two repeats."""
    over_runner_up: SpeedUp | None
    """The winner's speed-up over the runner-up in the verification."""
    changes: tuple[EnvironmentChange, ...]
    recorded: bool
    """False if the study did not record its software, so that most changes are unknown."""
    equivalence: Equivalence | None
    """Comparison of the winner's losses with those in the study; None if the program reports none."""
    objective: Objective
    spent: Spending
    """Hours and price of the verification, which the study does not count."""
    ended: str
    """The budget that ended the rounds, in words; empty if none did."""
    trials: tuple[Trial, ...]
    """Trials of the verification, oldest first."""

    @classmethod
    def of(cls, plan: VerifyPlan, study: Study, now: WinnerComparison, number: int, *, ended: str) -> "VerifyResult":
        """Return the result of a verification whose trials have ended."""
        finished, trials, problem = plan.finished, study.trials(), plan.setup.problem
        by_role = {role: plan.verdict(each, trials) for each, role in finished.roles.items()}
        return cls(
            study=finished.folder,
            number=number,
            folder=study.folder,
            date=datetime.now(UTC).strftime(DATE),
            measured=finished.date,
            margin=plan.margin,
            winner=by_role[WINNER],
            reference=by_role.get(finished.found.reference_kind),
            runner_up=by_role.get(RUNNER_UP),
            speed_up_then=finished.found.speed_up,
            speed_up=now.speed_up,
            over_runner_up=now.margin,
            recorded=plan.recorded,
            changes=(*plan.changes, *moved(finished, trials)),
            equivalence=_same_losses(finished, study, trials, problem),
            objective=problem.objective,
            spent=spending(study, problem),
            ended=ended,
            trials=tuple(trials),
        )

    @property
    def verdicts(self) -> tuple[ConfigurationVerdict, ...]:
        """Return the verdicts, the winner's first."""
        return tuple(each for each in (self.winner, self.runner_up, self.reference) if each)

    @property
    def regressions(self) -> list[str]:
        """Return what is worse than in the study, a phrase each; empty if nothing is."""
        found = []
        if self.winner.verdict in ("slower", "no_longer_runs"):
            found.append(f"the winner {'is ' * (self.winner.verdict == 'slower')}{self.winner.in_words(self.objective)}")
        compared = ((self.runner_up, self.over_runner_up), (self.reference, self.speed_up))
        for other, over in compared:
            if other and over and overtaken(over, self.margin):
                name = REFERENCES.get(other.role, f"the {other.role}")
                found.append(f"{name} is now faster than the winner by {difference(over.inverse)}")
        return found

    @property
    def status(self) -> Status:
        """Return `regression`, `passed`, or `inconclusive` if the winner runs but noise or missing repeats leave its verdict open."""
        if self.regressions:
            return "regression"
        return "inconclusive" if self.winner.verdict in OPEN else "passed"

    @property
    def summary(self) -> str:
        """Return the verdict in one line, with the budget that ended the rounds."""
        verb = "" if self.winner.verdict in OPEN else "is "
        found = self.regressions or [f"the {WINNER} {verb}{self.winner.in_words(self.objective)}"]
        return "; ".join([*found, *([self.ended] if self.ended and self.ended not in found[0] else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, as `oppa verify --json` prints them; null where a value is missing."""
        return {
            "study": str(self.study),
            "measured": self.measured,
            "verification": self.number,
            "folder": str(self.folder),
            "date": self.date,
            "status": self.status,
            "summary": self.summary,
            "regressions": self.regressions,
            "margin": self.margin,
            "software_recorded": self.recorded,
            "changed": [dataclasses.asdict(each) for each in self.changes],
            "winner": self.winner.to_dict(self.objective),
            "reference": self.reference and self.reference.to_dict(self.objective),
            "runner_up": self.runner_up and self.runner_up.to_dict(self.objective),
            "gain_then": _ratio(self.speed_up_then),
            "gain": _ratio(self.speed_up),
            "lead": _ratio(self.over_runner_up),
            "equivalence": self.equivalence and self.equivalence.to_dict(),
            "spent": self.spent.to_dict(),
            "trials": [{**trial_json(trial), "hosts": list(trial.hosts)} for trial in self.trials],
        }


def _ratio(compared: SpeedUp | None) -> Mapping[str, float] | None:
    return None if compared is None else dataclasses.asdict(compared.ratio)


def _same_losses(finished: FinishedStudy, study: Study, trials: list[Trial], problem: Problem) -> Equivalence | None:
    """Compare the losses of the winner's last trial in the study with those of its last trial in the verification."""
    best = finished.found.best
    then = finished.found.repeats[best.configuration] or (best,)
    now = [trial for trial in trials if trial.configuration == best.configuration and trial.feasible]
    if not now:
        return None
    theirs = losses(finished.folder / "trials" / then[-1].folder_name)
    ours = losses(study.trial_folder(now[-1]))
    repeat = losses(study.trial_folder(now[-2])) if len(now) > 1 else None
    if not theirs:  # the folder of the study's trial may be gone
        return None
    return compare(theirs, ours, reference=best.configuration.id, precision=problem.training.precision, repeat=repeat)
