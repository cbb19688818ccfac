"""Plan a verification: what is measured again, how often, and what changed since the study."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.study import Trial
from oppa.tuning.device_budget import total_s
from oppa.tuning.longer_trials import require_fitting
from oppa.tuning.session import Setup, require_whole
from oppa.tuning.spending import gpu_hours, unit
from oppa.tuning.verify.changes import EnvironmentChange, changes
from oppa.tuning.verify.finished import FinishedStudy
from oppa.tuning.verify.verdict import MARGIN, ConfigurationVerdict, judge
from oppa.tuning.winner import repeat_s
from oppa.units import format_hours

LEAST_ROUNDS = 3
"""Fewest rounds, as of the repeats of a search."""
MOST_ROUNDS = 10
"""Rounds up to which a verification goes on while the winner's verdict is unclear, unless the user states their number."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Holds the plan of a verification."""

    finished: FinishedStudy
    setup: Setup
    """The problem, with the limits and the software of the verification, and where its trials run."""
    rounds: int
    most_rounds: int
    """Rounds up to which it goes on while the winner's verdict is unclear."""
    margin: float
    facts: Mapping[str, str]
    """Facts that explain the trials of the verification later."""
    changes: tuple[EnvironmentChange, ...]
    """Changes since the study, as far as they are known before the first trial."""

    @classmethod
    def of(cls, finished: FinishedStudy, setup: Setup, *, rounds: int | None, margin: float | None, facts: Mapping[str, str]) -> Self:
        """Return the plan with these rounds and this margin, or with the usual ones.

        Raises:
            InputError: the rounds are no whole number or too few, the margin is no share, a trial does not fit into its time limit,
                or a round does not fit into the limit of GPU-hours.
        """
        if rounds is not None:
            require_whole("rounds", rounds, least=LEAST_ROUNDS)
        if margin is not None and not 0 <= margin < 1:
            raise InputError(f"`margin = {margin:g}` is not a share", hint="use a number from 0 to 1, such as 0.05 for 5%")
        require_fitting([*finished.contenders.values()], setup.problem.limits)
        least = setup.problem.limits.repeats if rounds is None else rounds
        planned = cls(
            finished=finished,
            setup=setup,
            rounds=least,
            most_rounds=max(least, MOST_ROUNDS) if rounds is None else least,
            margin=MARGIN if margin is None else margin,
            facts=facts,
            changes=changes(finished, setup.problem.software, facts),
        )
        if planned.affordable < len(finished.roles):
            raise _too_short(planned)
        return planned

    @property
    def trials(self) -> int:
        """Return the number of trials of the rounds, without those that an unclear verdict adds."""
        return self.rounds * len(self.finished.roles)

    @property
    def affordable(self) -> int:
        """Return how many of these trials are expected to fit in the limit of GPU-hours."""
        problem, contenders = self.setup.problem, self.finished.contenders.values()
        limit_s = total_s(problem)
        ends_s = itertools.accumulate([repeat_s(trial, problem) for trial in contenders] * self.rounds)
        return self.trials if limit_s is None else sum(end_s <= limit_s for end_s in ends_s)

    @property
    def recorded(self) -> bool:
        """Return whether the study recorded its software; simulated trials have none to record."""
        return self.setup.runner.in_process or self.finished.problem.software is not None

    @property
    def launcher(self) -> str:
        """Return the name of the launcher of the trials; `simulated` if nothing is started."""
        return "simulated" if self.setup.runner.in_process else self.setup.request.launcher

    @property
    def seconds(self) -> float:
        """Return the expected seconds of the rounds, without those that an unclear verdict adds."""
        return self.rounds * self.finished.round_s(self.setup.problem)

    def verdict(self, configuration: Configuration, trials: Sequence[Trial]) -> ConfigurationVerdict:
        """Return the verdict on a configuration, given all trials of the verification so far."""
        now = [trial for trial in trials if trial.configuration == configuration]
        then = self.finished.found.repeats[configuration]
        return judge(self.finished.roles[configuration], configuration, then=then, now=now, margin=self.margin)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        roles = self.finished.roles
        return {
            "study": str(self.finished.folder),
            "launcher": self.launcher,
            "rounds": self.rounds,
            "most_rounds": self.most_rounds,
            "margin": self.margin,
            "configurations": {roles[each]: each.to_dict() for each in roles},
            "changed": [dataclasses.asdict(each) for each in self.changes],
            "seconds": self.seconds,
            "gpu_hours": gpu_hours(self.setup.problem.cluster, self.seconds),
        }


def _too_short(plan: VerifyPlan) -> InputError:
    """Return the error of a limit of GPU-hours that ends before the first round does."""
    problem, cluster = plan.setup.problem, plan.setup.problem.cluster
    takes = gpu_hours(cluster, plan.finished.round_s(problem))
    return InputError(
        f"`max_gpu_hours = {problem.limits.max_gpu_hours:g}` is too little: one round takes about {format_hours(takes)} {unit(cluster)}",
        hint=f"use at least {format_hours(gpu_hours(cluster, plan.seconds))}, for {plan.rounds} rounds",
    )
