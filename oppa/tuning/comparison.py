"""Compare the winner of a search with its reference and the runner-up, by the trials of a study.

A search reports the luckiest of many noisy trials. Only interleaved repeats show what the winner is worth.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.study import Trial
from oppa.study.records import BASELINE, DRIFT, MEASURED, SEARCH
from oppa.tuning.break_even import REFERENCES
from oppa.tuning.designer import Observation, measured_rates, standings
from oppa.tuning.drift import drift_of
from oppa.tuning.verification import SpeedUp, speed_up

STRIKES = 2
"""Failed trials after which a configuration is dropped; running out of memory once is enough."""
BASELINES = 6
"""Trials beyond the search that may be spent on finding a default configuration that fits."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Holds a configuration that took part in the comparison, and its throughput."""

    configuration: Configuration
    steps_per_s: float | None
    """Geometric mean over its repeats, in steps per second; None before the first repeat."""
    steps_per_s_search: float | None
    """Geometric mean over its trials in the search, in steps per second."""
    memory_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "configuration": self.configuration.to_dict()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WinnerComparison:
    """Compares the winner with a reference: the user's baseline, else the default; None if there is no such configuration."""

    best: Trial
    reference: Trial | None
    runner_up: Trial | None
    repeats: Mapping[Configuration, tuple[Trial, ...]]
    """The completed repeats of every contender, in the order in which the contenders take turns."""
    baseline: Configuration | None = None
    """The user's present configuration."""
    failure: Trial | None = None
    """The failed trial of the baseline, if the default replaces it."""
    searched: Mapping[Configuration, float] = dataclasses.field(default_factory=dict)
    """The throughput in the search of each contender that the search tried, in steps per second."""

    @property
    def pairing(self) -> str:
        """Return the id of this set of contenders, which all their repeats carry."""
        return pairing_of(self.repeats)

    @property
    def reference_kind(self) -> str:
        """Return the name of the winner's reference: `baseline`, or `default`."""
        return "baseline" if self.reference and self.reference.configuration == self.baseline else "default"

    @property
    def reference_in_words(self) -> str:
        """Return the name of the reference as it reads in a sentence."""
        return REFERENCES[self.reference_kind]

    @property
    def speed_up(self) -> SpeedUp | None:
        """Return the winner's speed-up over the reference; None if they are the same, or either has fewer than two repeats."""
        return self._over(self.reference)

    @property
    def margin(self) -> SpeedUp | None:
        """Return the winner's margin over the runner-up, under the same conditions."""
        return self._over(self.runner_up)

    @property
    def keeps_baseline(self) -> bool:
        """Return whether the user's present configuration is another one than the winner, and tied with it."""
        return self.reference_kind == "baseline" and self.speed_up is not None and self.speed_up.tied

    def repeats_of(self, trial: Trial) -> tuple[Trial, ...]:
        """Return the repeats of a trial's configuration."""
        return self.repeats.get(trial.configuration, ())

    def contender(self, trial: Trial) -> Contender:
        """Return a trial's configuration with the throughput of its repeats."""
        verified = rates(self.repeats_of(trial))
        return Contender(
            configuration=trial.configuration,
            steps_per_s=statistics.geometric_mean(verified) if verified else None,
            steps_per_s_search=self.searched.get(trial.configuration, trial.steps_per_s),
            memory_bytes=trial.memory_bytes,
        )

    def missing(self, repeats: int) -> Configuration | None:
        """Return the configuration whose repeat is due; None when each has `repeats`. They take turns; the order reverses every round."""
        done = min(map(len, self.repeats.values()))
        order = list(self.repeats)[:: 1 if done % 2 else -1]
        return None if done >= repeats else next(each for each in order if len(self.repeats[each]) == done)

    def _over(self, other: Trial | None) -> SpeedUp | None:
        if other is None or other.configuration == self.best.configuration:
            return None
        ours, theirs = rates(self.repeats_of(self.best)), rates(self.repeats_of(other))
        return speed_up(ours, theirs) if min(len(ours), len(theirs)) >= 2 else None


def compare_contenders(
    trials: Sequence[Trial], candidates: Candidates, repeats: int, baseline: Configuration | None = None
) -> WinnerComparison | None:
    """Compare the contenders by the trials so far, without running anything; None if nothing ran to its end.

    The contenders are the fastest that ran to its end, the fastest other one that was measured, and the default or a baseline that runs.
    The last trial of each represents it. Configurations that fail when run again are dropped. The winner is the fastest in the repeats,
    once there are enough of them.
    """
    tried = {candidate: own for candidate, own in _tries(trials, candidates).items() if not is_unreliable(trials, own[0].configuration)}
    offsets = drift_of(trials).offsets
    seen = [Observation.of(trial, candidates, offset=offsets.get(trial.id, 0.0)) for own in tried.values() for trial in own]
    fastest = [next(trial for trial in reversed(tried[candidate]) if trial.feasible) for candidate in standings(seen)]
    if not fastest:
        return None
    order = reference_order(candidates, baseline)
    reference = next((trial for index in order for trial in reversed(tried.get(index, ())) if _measured(trial)), None)
    measured = [next(filter(_measured, reversed(tried[candidate]))) for candidate in measured_rates(seen)]
    second = next((trial for trial in measured if trial.configuration != fastest[0].configuration), None)
    leading = {trial.configuration: trial for trial in (*([reference] if reference else []), fastest[0])}
    # Trials of one configuration differ by more than their steps show, so one that was ended early may be the fastest in the repeats.
    runner_up = next((trial for trial in fastest[1:2] if _were_compared(trials, {*leading, trial.configuration})), second)
    contenders = leading | ({runner_up.configuration: runner_up} if runner_up else {})
    ran = _repeats(trials, contenders)
    result = WinnerComparison(
        best=fastest[0],
        reference=reference,
        runner_up=runner_up,
        repeats=ran,
        baseline=baseline,
        failure=_failure(trials, baseline) if reference is None or reference.configuration != baseline else None,
        searched=_searched(trials, contenders),
    )
    return result if result.missing(repeats) else _ranked_by_repeats(result, contenders)


def contenders(result: WinnerComparison) -> list[Trial]:
    """Return the trials that represent the contenders."""
    return [trial for trial in (result.best, result.runner_up, result.reference) if trial is not None]


def untried_reference(
    trials: Sequence[Trial],
    candidates: Candidates,
    baseline: Configuration | None = None,
    *,
    may_fit: Callable[[int], bool] = lambda _: True,
) -> int | None:
    """Return the number of the next candidate to try as the reference; None once one was measured, or too many were not.

    Args:
        may_fit: Return whether a candidate is predicted to fit in memory; the others are tried after all that are.
    """
    tried, order = _tries(trials, candidates), reference_order(candidates, baseline)
    spent = sum(trial.purpose == BASELINE for own in tried.values() for trial in own)
    present = None if baseline is None else candidates.index_of(baseline)
    likely = (candidate for candidate in order if candidate in tried or candidate == present or may_fit(candidate))
    for candidate in itertools.chain(likely, order):
        if candidate not in tried:
            return candidate if spent < BASELINES else None
        if any(map(_measured, tried[candidate])) and not is_unreliable(trials, candidates.configuration(candidate)):
            break
    return None


def reference_order(candidates: Candidates, baseline: Configuration | None) -> list[int]:
    """Return the candidates that represent "not tuned", in the order in which they are tried: the user's baseline comes first."""
    return [*([candidates.index_of(baseline)] if baseline else []), *map(int, candidates.default_order())]


def is_unreliable(trials: Sequence[Trial], configuration: Configuration) -> bool:
    """Return whether a configuration is unreliable: it ran out of memory once, or failed STRIKES times."""
    failed = [t.outcome for t in trials if t.configuration == configuration and t.counts and t.outcome not in MEASURED]
    return "out_of_memory" in failed or len(failed) >= STRIKES


def pairing_of(contenders: Collection[Configuration]) -> str:
    """Return the id of a set of contenders."""
    return "|".join(sorted(each.id for each in contenders))


def rates(repeats: Sequence[Trial]) -> list[float]:
    """Return the measured throughputs of trials, steps per second."""
    return [trial.steps_per_s for trial in repeats if trial.steps_per_s]


def _were_compared(trials: Sequence[Trial], contenders: Collection[Configuration]) -> bool:
    """Return whether the study has repeats of these contenders, which it then keeps."""
    return any(trial.pairing == pairing_of(contenders) for trial in trials)


def _failure(trials: Sequence[Trial], baseline: Configuration | None) -> Trial | None:
    """Return the last trial of the baseline that measured nothing; None if there is none."""
    failed = [trial for trial in trials if trial.configuration == baseline and trial.counts and not _measured(trial)]
    return failed[-1] if failed else None


def _ranked_by_repeats(result: WinnerComparison, contenders: Mapping[Configuration, Trial]) -> WinnerComparison:
    """Return the comparison in which the fastest contender of the repeats is the winner, and the second the runner-up."""
    ranked = sorted(contenders, key=lambda each: -statistics.geometric_mean(rates(result.repeats[each])))
    second = contenders[ranked[1]] if len(ranked) > 1 else None
    return dataclasses.replace(result, best=contenders[ranked[0]], runner_up=second)


def _repeats(trials: Sequence[Trial], contenders: Mapping[Configuration, Trial]) -> dict[Configuration, tuple[Trial, ...]]:
    ran = [trial for trial in trials if trial.pairing == pairing_of(contenders) and trial.feasible]
    return {each: tuple(trial for trial in ran if trial.configuration == each) for each in contenders}


def _searched(trials: Sequence[Trial], contenders: Collection[Configuration]) -> dict[Configuration, float]:
    measured = {each: rates([t for t in trials if t.configuration == each and t.purpose == SEARCH]) for each in contenders}
    return {each: statistics.geometric_mean(own) for each, own in measured.items() if own}


def _tries(trials: Sequence[Trial], candidates: Candidates) -> dict[int, list[Trial]]:
    """Return the trials of the search and those of default configurations, by candidate."""
    tried: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.purpose in (SEARCH, BASELINE, DRIFT) and trial.counts:
            tried.setdefault(candidates.index_of(trial.configuration), []).append(trial)
    return tried


def _measured(trial: Trial) -> bool:
    return trial.outcome in MEASURED and trial.steps_per_s is not None
