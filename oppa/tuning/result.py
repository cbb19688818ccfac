"""What `oppa tune` found: the winner as verified, the default, the gain between them, and every trial."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from oppa.problem.candidates import Candidates
from oppa.study import Study, Trial
from oppa.study.records import SEARCH, VERIFICATION
from oppa.tuning.search import Bench, default_trial, incumbents
from oppa.tuning.verification import FALLBACKS, Gain, gain, repeat, verified


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A winner and the default that it was measured against. `gain` is None where they are the same or could not be verified."""

    best: Trial
    default: Trial
    gain: Gain | None


def find_winner(bench: Bench, candidates: Candidates, repeats: int) -> Finding | None:
    """Verify the fastest configuration against the default; None if no trial was feasible.

    A configuration that fails a repeat makes way for the next fastest, at most FALLBACKS times.
    """
    for _ in range(FALLBACKS):
        pair = _pair(bench.study.trials(), candidates)
        if pair is None:
            return None
        failed = repeat(bench, list({trial.id: trial.configuration for trial in pair}.values()), max(2, repeats))
        if failed is None or failed == pair[1].configuration:
            break
    return current(bench.study.trials(), candidates)


def current(trials: Sequence[Trial], candidates: Candidates) -> Finding | None:
    """The finding of a study as it stands, without running anything; a winner that its repeats show to be slower loses to the default."""
    pair = _pair(trials, candidates)
    if pair is None:
        return None
    best, default = pair
    ours, theirs = ([t.steps_per_s for t in verified(trials, one.configuration) if t.steps_per_s] for one in pair)
    if best.id == default.id or min(len(ours), len(theirs)) < 2:
        return Finding(best=best, default=default, gain=None)
    compared = gain(ours, theirs)
    if compared.ratio.value < 1.0:
        return Finding(best=default, default=default, gain=None)
    return Finding(best=best, default=default, gain=compared)


def _pair(trials: Sequence[Trial], candidates: Candidates) -> tuple[Trial, Trial] | None:
    """The fastest search trial whose configuration never failed a repeat, and the default's trial."""
    feasible = incumbents(trials)
    steady = [trial for trial in feasible if all(repeat.feasible for repeat in verified(trials, trial.configuration))]
    if not steady:
        return None
    return steady[0], default_trial(candidates, trials) or steady[-1]


def to_json(study: Study, finding: Finding | None, why_ended: str) -> dict[str, Any]:
    """The result for machines, as `oppa tune --json` prints it; null where there is none."""
    trials = study.trials()
    checks = [trial for trial in trials if trial.purpose == VERIFICATION]
    return {
        "study": str(study.folder),
        "ended": why_ended,
        "best": finding and _summary(finding.best, checks),
        "default": finding and _summary(finding.default, checks),
        "gain": finding and (finding.gain.ratio.value if finding.gain else _same(finding)),
        "gain_interval": finding.gain and [finding.gain.ratio.low, finding.gain.ratio.high] if finding else None,
        "tied": finding and (finding.gain.tied if finding.gain else True),
        "verification": [trial_json(trial) for trial in checks],
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


def _summary(trial: Trial, checks: Sequence[Trial]) -> dict[str, Any]:
    rates = [check.steps_per_s for check in verified(checks, trial.configuration) if check.steps_per_s]
    return {
        "configuration": trial.configuration.to_dict(),
        "steps_per_s": geometric_mean(rates),
        "steps_per_s_search": trial.steps_per_s,
        "memory_bytes": trial.memory_bytes,
    }


def geometric_mean(rates: Sequence[float]) -> float | None:
    """The middle of ratios; None of nothing."""
    return statistics.geometric_mean(rates) if rates else None


def _same(finding: Finding) -> float | None:
    return 1.0 if finding.best.id == finding.default.id else None
