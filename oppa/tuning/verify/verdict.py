"""Judge each configuration of a verification by the statistics of verified winners: repeats that took turns, compared by Welch's t."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from oppa.problem.configuration import Configuration
from oppa.problem.objective import Objective
from oppa.study import Trial
from oppa.tuning.comparison import is_unreliable, rates
from oppa.tuning.verification import Interval, SpeedUp, interval, speed_up

MARGIN = 0.05
"""Change of throughput that is never called slower or faster, and is excluded where the verdict is `as fast`.

An interval is that of repeats within one session. It does not cover what differs between sessions: clocks, temperature, placement.
"""
LEAST = 2
"""Repeats without which there is no interval."""

Verdict = Literal["as_fast", "slower", "faster", "unclear", "no_longer_runs", "not_compared"]
WORDS: dict[str, str] = {"as_fast": "as fast", "slower": "slower", "faster": "faster", "gain": "speed-up"}
"""Words of a throughput."""
WORDS_OF_OBJECTIVE: dict[str, str] = {"as_fast": "as good", "slower": "worse", "faster": "better", "gain": "gain"}
"""Words of any other objective."""


def words_of(objective: Objective) -> dict[str, str]:
    """Return the words that compare values of an objective."""
    return WORDS if objective.is_throughput else WORDS_OF_OBJECTIVE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationVerdict:
    """Holds the verdict on one configuration."""

    role: str
    """`winner`, `runner-up`, `baseline` or `default`."""
    configuration: Configuration
    verdict: Verdict
    cause: str = ""
    """Why it no longer runs, or cannot be compared."""
    failed: str = ""
    """Name of the folder of the trial that failed; empty if it runs."""
    then: Interval | None = None
    """Its throughput in the study, in steps per second."""
    now: Interval | None = None
    """Its throughput in the verification."""
    ratio: Interval | None = None
    """The latter divided by the former."""

    def in_words(self, objective: Objective) -> str:
        """Return the verdict as text, such as `slower by 12.3% [9.8% - 14.6%]`."""
        if self.ratio is None:
            return f"no longer runs: {self.cause}" if self.verdict == "no_longer_runs" else f"cannot be compared: {self.cause}"
        words = words_of(objective)
        if self.verdict == "unclear":
            return f"may be {words['slower']}: {changed(self.ratio)}; more rounds, or more repeats in the study, would show"
        word = words[self.verdict]
        return f"{word}: {changed(self.ratio)}" if self.verdict == "as_fast" else f"{word} by {difference(self.ratio)}"

    def to_dict(self, objective: Objective) -> dict[str, Any]:
        """Return JSON values."""
        values = dataclasses.asdict(self)
        return {
            **values,
            "configuration": self.configuration.to_dict(),
            "id": self.configuration.id,
            "cause": self.cause or None,
            "failed": self.failed or None,
            "text": self.in_words(objective),
        }


def judge(role: str, configuration: Configuration, *, then: Sequence[Trial], now: Sequence[Trial], margin: float) -> ConfigurationVerdict:
    """Return the verdict on a configuration.

    Args:
        then: Its repeats in the study.
        now: All its trials in the verification.
        margin: Share of the throughput up to which a change does not count.
    """
    before, after = rates(then), rates([trial for trial in now if trial.feasible])
    known = ConfigurationVerdict(
        role=role,
        configuration=configuration,
        verdict="not_compared",
        then=interval(before) if len(before) >= LEAST else None,
        now=interval(after) if len(after) >= LEAST else None,
    )
    if is_unreliable(now, configuration):
        failed = next(trial for trial in reversed(now) if trial.counts and not trial.steps_per_s)
        return dataclasses.replace(known, verdict="no_longer_runs", cause=_cause(failed), failed=failed.folder_name)
    if known.then is None or known.now is None:
        return dataclasses.replace(known, cause=_too_few(len(before), len(after), now))
    ratio = speed_up(after, before).ratio
    return dataclasses.replace(known, verdict=verdict_on(ratio, margin), ratio=ratio)


def verdict_on(ratio: Interval, margin: float) -> Verdict:
    """Return the verdict on a ratio of throughputs: a change differs from 1 by more than the margin, and its interval excludes 1.

    Any other ratio is as fast if its whole interval is above 1 - margin. Otherwise it is unclear, and more rounds would show.
    """
    if ratio.value < 1 - margin and ratio.high < 1:
        return "slower"
    if ratio.value > 1 + margin and ratio.low > 1:
        return "faster"
    return "as_fast" if ratio.low >= 1 - margin else "unclear"


def overtaken(winner_over_reference: SpeedUp, margin: float) -> bool:
    """Return whether the reference is now faster than the winner, beyond noise and margin."""
    return verdict_on(winner_over_reference.ratio, margin) == "slower"


def difference(ratio: Interval) -> str:
    """Return the size of a change with its interval, as text: `12.3% [9.8% - 14.6%]`."""
    low, high = sorted(((ratio.low - 1) * _sign(ratio), (ratio.high - 1) * _sign(ratio)))
    return f"{abs(ratio.value - 1):.1%} [{low:.1%} - {high:.1%}]"


def changed(ratio: Interval) -> str:
    """Return a change with its sign and its interval, as text: `-0.4% [-2.1% to +1.3%]`."""
    return f"{ratio.value - 1:+.1%} [{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}]"


def _sign(ratio: Interval) -> float:
    return 1.0 if ratio.value >= 1 else -1.0


def _cause(trial: Trial) -> str:
    """Return how a trial failed, in one line."""
    outcome = "" if trial.outcome == "failed" and trial.cause else trial.outcome.replace("_", " ")
    return ": ".join(part for part in (outcome, " ".join(trial.cause.split())) if part)


def _too_few(before: int, after: int, now: Sequence[Trial]) -> str:
    """Return why there is no interval."""
    if after >= LEAST:
        return f"the study has {'one repeat' if before else 'no repeat'} of it; `oppa tune` with the study runs the repeats"
    last = next((" ".join(trial.cause.split()) for trial in reversed(now) if trial.cause), "")
    return ("it was measured only once now" if after else "it was not measured now") + (f", {last}" if last else "")
