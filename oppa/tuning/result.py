"""What `oppa tune` found: the winner, proved against the default by fresh repeats that ran in turn.

A search reports the luckiest of many noisy trials. Only repeats, side by side, say what the winner is worth.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.study import Study, Trial
from oppa.study.records import SEARCH, VERIFICATION
from oppa.tuning.search import Sitting, searched
from oppa.tuning.verification import Gain, gain

STRIKES = 2
"""Repeats that may fail before a configuration is dropped; running out of memory once is enough."""
CHALLENGERS = 3
"""Of the fastest configurations, how many may turn out slower than the default before the default is the winner."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A winner and the default that it was measured against; None where no default configuration is feasible."""

    best: Trial
    default: Trial | None
    best_repeats: tuple[Trial, ...]
    default_repeats: tuple[Trial, ...]
    """Those of their pairing that ran to their end."""

    @property
    def pairing(self) -> str:
        """What the repeats of these two have in common."""
        return f"{self.best.configuration.id}|{self.default.configuration.id if self.default else ''}"

    @property
    def contenders(self) -> dict[Configuration, tuple[Trial, ...]]:
        """What is repeated, and its repeats so far: the default and the winner, or one alone where they are the same."""
        repeats = {self.best.configuration: self.best_repeats}
        return {self.default.configuration: self.default_repeats, **repeats} if self.default else repeats

    @property
    def gain(self) -> Gain | None:
        """The winner over the default; None where they are the same, or have fewer than two repeats each."""
        ours, theirs = rates(self.best_repeats), rates(self.default_repeats)
        same = self.default is None or self.default.configuration == self.best.configuration
        return None if same or min(len(ours), len(theirs)) < 2 else gain(ours, theirs)

    def missing(self, repeats: int) -> Configuration | None:
        """Whose repeat is due: in turn, the order reversed every round; None when each has `repeats`."""
        done = min(map(len, self.contenders.values()))
        order = list(self.contenders)[:: 1 if done % 2 else -1]
        return None if done >= repeats else next(each for each in order if len(self.contenders[each]) == done)


def find_winner(sitting: Sitting, candidates: Candidates, repeats: int) -> Finding | None:
    """Repeat the fastest configuration and the default until the winner is proved; None if nothing is feasible."""
    while True:
        sitting.study.recover()
        finding = current(sitting.study.trials(), candidates, repeats)
        if finding is None or (due := finding.missing(repeats)) is None:
            return finding
        if any(lease.pairing == finding.pairing for lease in sitting.study.running()):
            sitting.wait()  # another tuner repeats the same pair
        elif (lease := sitting.study.claim(due, pairing=finding.pairing)) is not None:
            sitting.run(lease)


def current(trials: Sequence[Trial], candidates: Candidates, repeats: int) -> Finding | None:
    """The finding as the trials so far have it, without running anything.

    Configurations that fail their repeats are dropped; one that its repeats show to be slower than the default makes way for the
    next fastest, CHALLENGERS times.
    """
    feasible = sorted((t for t in searched(trials) if t.feasible and not _dropped(trials, t)), key=lambda t: -(t.steps_per_s or 0.0))
    order = {candidates.index_of(t.configuration): t for t in feasible}
    default = next((order[index] for index in candidates.default_order() if index in order), None)
    for best in feasible[:CHALLENGERS]:
        finding = _finding(trials, best, default)
        slower = finding.missing(repeats) is None and finding.gain is not None and finding.gain.ratio.value < 1.0
        if not slower:
            return finding
    return _finding(trials, default, default) if default else None


def _finding(trials: Sequence[Trial], best: Trial, default: Trial | None) -> Finding:
    bare = Finding(best=best, default=default, best_repeats=(), default_repeats=())
    ran = [trial for trial in trials if trial.pairing == bare.pairing and trial.feasible]
    ours = tuple(trial for trial in ran if trial.configuration == best.configuration)
    theirs = tuple(trial for trial in ran if default and trial.configuration == default.configuration)
    return dataclasses.replace(bare, best_repeats=ours, default_repeats=theirs)


def _dropped(trials: Sequence[Trial], candidate: Trial) -> bool:
    """Whether its repeats show that a configuration cannot be relied on."""
    repeats = [t for t in trials if t.purpose == VERIFICATION and t.configuration == candidate.configuration and t.counts]
    failed = [trial.outcome for trial in repeats if not trial.feasible]
    return "out_of_memory" in failed or len(failed) >= STRIKES


def to_json(study: Study, finding: Finding | None, why_ended: str | None) -> dict[str, Any]:
    """The result for machines, as `oppa tune --json` prints it; null where there is none."""
    trials = study.trials()
    compared = finding and finding.gain
    same = finding is not None and finding.default is not None and finding.default.configuration == finding.best.configuration
    return {
        "study": str(study.folder),
        "ended": why_ended,
        "best": finding and _summary(finding.best, finding.best_repeats),
        "default": finding and finding.default and _summary(finding.default, finding.default_repeats),
        "gain": compared.ratio.value if compared else 1.0 if same else None,
        "gain_interval": [compared.ratio.low, compared.ratio.high] if compared else None,
        "tied": compared.tied if compared else True if same else None,
        "verification": [trial_json(trial) for trial in trials if trial.purpose == VERIFICATION],
        "trials": [trial_json(trial) for trial in trials if trial.purpose == SEARCH],
    }


def trial_json(trial: Trial) -> dict[str, Any]:
    """One trial for machines."""
    return {
        "id": trial.id,
        "configuration": trial.configuration.to_dict(),
        "outcome": trial.outcome,
        "cause": trial.cause or None,
        "steps": len(trial.step_times_s),
        "steps_per_s": trial.steps_per_s,
        "stddev": trial.stddev,
        "memory_bytes": trial.memory_bytes,
        "predicted_steps_per_s": trial.prediction and trial.prediction.steps_per_s,
        "predicted_log_stddev": trial.prediction and trial.prediction.log_stddev,
        "seconds": trial.seconds,
    }


def rates(repeats: Sequence[Trial]) -> list[float]:
    """Their throughputs, steps per second."""
    return [trial.steps_per_s for trial in repeats if trial.steps_per_s]


def _summary(trial: Trial, repeats: Sequence[Trial]) -> dict[str, Any]:
    verified = rates(repeats)
    return {
        "configuration": trial.configuration.to_dict(),
        "steps_per_s": statistics.geometric_mean(verified) if verified else None,
        "steps_per_s_search": trial.steps_per_s,
        "memory_bytes": trial.memory_bytes,
    }
