"""Write the result of `oppa tune` as JSON values."""

import dataclasses
import statistics
from typing import Any

from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.records import BASELINE, DRIFT, SEARCH, VERIFICATION
from oppa.tuning.break_even import BreakEven, realised
from oppa.tuning.calibration import track_record
from oppa.tuning.comparison import WinnerComparison, rates
from oppa.tuning.drift import drift_of
from oppa.tuning.equivalence import Equivalence
from oppa.tuning.proxy.nested import nested_study
from oppa.tuning.spending import Spending, spending
from oppa.tuning.verification import Interval

PURPOSES = (VERIFICATION, BASELINE, SEARCH, DRIFT)


def to_json(study: Study, result: WinnerComparison | None, why_ended: str | None, learned: Equivalence | None = None) -> dict[str, Any]:
    """Return the result as JSON values, as `oppa tune --json` prints it; null where a value is missing."""
    trials, problem = study.trials(), study.problem
    spent = spending(study, problem)
    listed = {purpose: [trial_json(trial) for trial in trials if trial.purpose == purpose] for purpose in PURPOSES}
    same = result is not None and result.reference is not None and result.reference.configuration == result.best.configuration
    compared, lead, predicted = result and result.speed_up, result and result.margin, track_record(trials)
    sought = problem.objective
    own = {} if sought.is_throughput else {"objective": sought.to_dict()}

    def contender(trial: Trial) -> dict[str, Any]:
        assert result is not None
        found = result.contender(trial)
        rate = found.steps_per_s or found.steps_per_s_search
        return {**found.to_dict(), **({"objective": rate and sought.of(rate)} if own else {})}

    reference = {result.reference_kind: contender(result.reference)} if result and result.reference else {}
    return {
        "study": str(study.folder),
        **({"proxy": below.to_dict()} if (below := nested_study(study.folder)) else {}),
        **own,
        "software": study.meta["problem"].get("software"),
        "ended": why_ended,
        "best": result and contender(result.best),
        "default": reference.get("default"),
        "baseline": reference.get("baseline"),
        "baseline_failure": result and result.failure and trial_json(result.failure),
        "runner_up": result and result.runner_up and contender(result.runner_up),
        "gain": compared.ratio.value if compared else 1.0 if same else None,
        "gain_interval": [compared.ratio.low, compared.ratio.high] if compared else None,
        "tied": compared.tied if compared else True if same else None,
        "lead": lead.ratio.value if lead else None,
        "lead_interval": [lead.ratio.low, lead.ratio.high] if lead else None,
        "equivalence": learned and learned.to_dict(),
        "predicted": predicted and dataclasses.asdict(predicted),
        "spent": spent.to_dict(),
        "break_even": result and break_even(result, spent, problem).to_dict(),
        "verification": listed[VERIFICATION],
        "default_trials": listed[BASELINE],
        "trials": listed[SEARCH],
        **({"drift_trials": listed[DRIFT], "drift": drift_of(trials).change} if listed[DRIFT] else {}),
        "damaged": [{"id": trial, "fault": fault} for trial, fault in study.damaged().items()],
    }


def break_even(result: WinnerComparison, spent: Spending, problem: Problem) -> BreakEven:
    """Return the measured break-even of a search; a winner that is the reference itself has a speed-up of 1.

    An objective that is no throughput has no speed-up, as its winner saves no known time.
    """
    reference, same = result.reference, Interval(value=1.0, low=1.0, high=1.0)
    repeats = rates(result.repeats_of(reference)) if reference else []
    rate = statistics.geometric_mean(repeats) if repeats else reference.steps_per_s if reference else None
    is_winner = reference is not None and reference.configuration == result.best.configuration
    measured = result.speed_up.ratio if result.speed_up else None
    gain = (same if is_winner else measured) if problem.objective.is_throughput else None
    pace = rate if problem.rates_are_steps else None
    batch = reference.configuration.global_batch if reference else None
    return realised(spent, problem, gain, reference=result.reference_kind, reference_rate=pace, global_batch=batch)


def trial_json(trial: Trial) -> dict[str, Any]:
    """Return one trial as JSON values."""
    predicted = trial.prediction
    return {
        "id": trial.id,
        "configuration": trial.configuration.to_dict(),
        "outcome": trial.outcome,
        "cause": trial.cause or None,
        "steps": len(trial.step_times_s),
        "steps_per_s": trial.steps_per_s,
        "stddev": trial.stddev,
        "memory_bytes": trial.memory_bytes,
        "predicted_steps_per_s": predicted and predicted.steps_per_s,
        "predicted_log_stddev": predicted and predicted.log_stddev,
        "predicted_memory_bytes": predicted and predicted.memory_bytes,
        "seconds": trial.seconds,
        **({"hosts": list(trial.hosts)} if trial.hosts else {}),
    }
