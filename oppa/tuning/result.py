"""Determine the result of `oppa tune`: the winner, verified against the default and the runner-up by fresh repeats in turn.

A search reports the luckiest of many noisy trials. Only interleaved repeats show what the winner is worth.
"""

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.study.records import BASELINE, DRIFT, MEASURED, SEARCH, VERIFICATION, TimeBudget
from oppa.tuning.break_even import REFERENCES, BreakEven, realised
from oppa.tuning.calibration import track_record
from oppa.tuning.designer import Designer, Observation, measured_rates, standings
from oppa.tuning.device_budget import CONTENDERS, UNPREDICTED, VARIATION, complete_s, startup_s
from oppa.tuning.drift import drift_of
from oppa.tuning.equivalence import Equivalence
from oppa.tuning.proxy.nested import nested_study
from oppa.tuning.spending import Spending, spending
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.verification import Interval, SpeedUp, speed_up

PURPOSES = (VERIFICATION, BASELINE, SEARCH, DRIFT)
STRIKES = 2
"""Failed trials after which a configuration is dropped; running out of memory once is enough."""
BASELINES = 6
"""Trials beyond the search that may be spent on finding a default configuration that fits."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A configuration that took part in the comparison, and its throughput."""

    configuration: Configuration
    steps_per_s: float | None
    """Geometric mean over its repeats, in steps per second; None before the first repeat."""
    steps_per_s_search: float | None
    """Throughput of its trial in the search, in steps per second."""
    memory_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "configuration": self.configuration.to_dict()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WinnerComparison:
    """The winner, and what it was compared with: the user's baseline, else the default; None if there is no such configuration."""

    best: Trial
    reference: Trial | None
    runner_up: Trial | None
    repeats: Mapping[Configuration, tuple[Trial, ...]]
    """The completed repeats of every contender, in the order in which the contenders take turns."""
    baseline: Configuration | None = None
    """The user's present configuration."""
    failure: Trial | None = None
    """The failed trial of the baseline, if the default replaces it."""

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

    def repeats_of(self, trial: Trial) -> tuple[Trial, ...]:
        """Return the repeats of a trial's configuration."""
        return self.repeats.get(trial.configuration, ())

    def contender(self, trial: Trial) -> Contender:
        """Return a trial's configuration with the throughput of its repeats."""
        verified = rates(self.repeats_of(trial))
        return Contender(
            configuration=trial.configuration,
            steps_per_s=statistics.geometric_mean(verified) if verified else None,
            steps_per_s_search=trial.steps_per_s,
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


def find_winner(executor: TrialExecutor, candidates: Candidates, designer: Designer) -> WinnerComparison | None:
    """Find a reference that fits, then repeat it, the fastest and the runner-up until the winner is verified; None if nothing fits.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    study, repeats, baseline = executor.study, executor.problem.limits.repeats, executor.problem.baseline
    while True:
        study.recover()
        trials, running = study.trials(), study.running()
        result = compare_contenders(trials, candidates, repeats, baseline)
        executor.failing_repeatedly(trials)
        reference = untried_reference(trials, candidates, baseline)
        expected_s = None if reference is None else complete_s(designer.predict(reference), trials, executor.problem)
        if reference is not None and allows(executor, trials, expected_s):
            due, purpose, pairing = candidates.configuration(reference), BASELINE, None
        elif result is None and running and not executor.budget.must_release():
            executor.wait()  # the trials of other tuners may be the first that run
            continue
        elif result is None or (repeat := result.missing(repeats)) is None:
            return result
        else:
            due, purpose, pairing = repeat, VERIFICATION, result.pairing
            expected_s = repeat_s(next(trial for trial in contenders(result) if trial.configuration == repeat), executor.problem)
            if not allows(executor, trials, expected_s) and (not running or executor.budget.must_release()):
                return result
        if any(lease.purpose == purpose and lease.pairing == pairing for lease in running):
            executor.wait()  # another tuner runs it
            continue
        prediction = designer.predict(candidates.index_of(due))
        request = request_of(executor, trials, expected_s)
        if (lease := study.claim(due, purpose=purpose, pairing=pairing, prediction=prediction, budget=request)) is not None:
            executor.run(lease)
        else:
            executor.wait()  # the trials of other tuners hold the rest of the budget


def request_of(executor: TrialExecutor, trials: Sequence[Trial], expected_s: float | None) -> TimeBudget | None:
    """Return the request for a trial that is worth nothing unless it completes."""
    steps_s = max(0.0, (expected_s or 0.0) - startup_s(trials))
    return executor.budget.request(trials, most_s=executor.problem.limits.trial_time_s, steps_s=steps_s)


def allows(executor: TrialExecutor, trials: Sequence[Trial], expected_s: float | None) -> bool:
    """Return whether the budget has as much left as such a trial needs."""
    return executor.budget.allows(request_of(executor, trials, expected_s))


def contenders(result: WinnerComparison) -> list[Trial]:
    """Return the trials that represent the contenders."""
    return [trial for trial in (result.best, result.runner_up, result.reference) if trial is not None]


def verification_s(trials: Sequence[Trial], candidates: Candidates, designer: Designer, problem: Problem) -> float:
    """Return the seconds that verification is expected to take, given the trials so far; infinity if nothing is known."""
    repeats, baseline = problem.limits.repeats, problem.baseline
    result, reference = compare_contenders(trials, candidates, repeats, baseline), untried_reference(trials, candidates, baseline)
    known = {} if result is None else {trial.configuration: repeat_s(trial, problem) for trial in contenders(result)}
    untried_s = None if reference is None else complete_s(designer.predict(reference), trials, problem)
    slowest_s = max(known.values(), default=math.inf)
    reference_s = slowest_s if reference is None else untried_s or UNPREDICTED * slowest_s
    due = sum((repeats - len(result.repeats[each])) * seconds for each, seconds in known.items()) if result else 0.0
    due += reference_s * (repeats * max(0, CONTENDERS - len(known)) if result is None or result.missing(repeats) else 0)
    looked_for_s = 0.0 if reference is None else reference_s + BASELINES * startup_s(trials)  # most may run out of memory
    return VARIATION * (due + looked_for_s)


def repeat_s(trial: Trial, problem: Problem) -> float:
    """Return the expected seconds of another trial of a configuration that runs to its end."""
    steps_s = problem.limits.q_max / trial.steps_per_s if trial.steps_per_s else 0.0
    return min(problem.limits.trial_time_s, max(trial.seconds, (trial.setup_s or 0.0) + steps_s))


def untried_reference(trials: Sequence[Trial], candidates: Candidates, baseline: Configuration | None = None) -> int | None:
    """Return the number of the next candidate to try as the reference; None once one was measured, or too many were not."""
    tried = _tries(trials, candidates)
    spent = sum(trial.purpose == BASELINE for own in tried.values() for trial in own)
    for candidate in reference_order(candidates, baseline):
        if candidate not in tried:
            return candidate if spent < BASELINES else None
        if any(map(_measured, tried[candidate])) and not is_unreliable(trials, candidates.configuration(candidate)):
            break
    return None


def reference_order(candidates: Candidates, baseline: Configuration | None) -> list[int]:
    """Return the candidates that represent "not tuned", in the order in which they are tried: the user's baseline comes first."""
    return [*([candidates.index_of(baseline)] if baseline else []), *map(int, candidates.default_order())]


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
    )
    return result if result.missing(repeats) else _ranked_by_repeats(result, contenders)


def _were_compared(trials: Sequence[Trial], contenders: Collection[Configuration]) -> bool:
    """Return whether the study has repeats of these contenders, which it then keeps."""
    return any(trial.pairing == pairing_of(contenders) for trial in trials)


def _failure(trials: Sequence[Trial], baseline: Configuration | None) -> Trial | None:
    """Return the last trial of the baseline that measured nothing; None if there is none."""
    failed = [trial for trial in trials if trial.configuration == baseline and trial.counts and not _measured(trial)]
    return failed[-1] if failed else None


def _ranked_by_repeats(result: WinnerComparison, contenders: Mapping[Configuration, Trial]) -> WinnerComparison:
    """Return the finding with the fastest in the repeats as the winner, and the second as the runner-up."""
    ranked = sorted(contenders, key=lambda each: -statistics.geometric_mean(rates(result.repeats[each])))
    second = contenders[ranked[1]] if len(ranked) > 1 else None
    return dataclasses.replace(result, best=contenders[ranked[0]], runner_up=second)


def _repeats(trials: Sequence[Trial], contenders: Mapping[Configuration, Trial]) -> dict[Configuration, tuple[Trial, ...]]:
    ran = [trial for trial in trials if trial.pairing == pairing_of(contenders) and trial.feasible]
    return {each: tuple(trial for trial in ran if trial.configuration == each) for each in contenders}


def pairing_of(contenders: Collection[Configuration]) -> str:
    """Return the id of a set of contenders."""
    return "|".join(sorted(each.id for each in contenders))


def _tries(trials: Sequence[Trial], candidates: Candidates) -> dict[int, list[Trial]]:
    """Return the trials of the search and those of default configurations, by candidate."""
    tried: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.purpose in (SEARCH, BASELINE, DRIFT) and trial.counts:
            tried.setdefault(candidates.index_of(trial.configuration), []).append(trial)
    return tried


def _measured(trial: Trial) -> bool:
    return trial.outcome in MEASURED and trial.steps_per_s is not None


def is_unreliable(trials: Sequence[Trial], configuration: Configuration) -> bool:
    """Return whether a configuration is unreliable: it ran out of memory once, or failed STRIKES times."""
    failed = [t.outcome for t in trials if t.configuration == configuration and t.counts and t.outcome not in MEASURED]
    return "out_of_memory" in failed or len(failed) >= STRIKES


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
        "equivalence": learned and {"holds": learned.holds, **dataclasses.asdict(learned)},
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
    """Return the measured break-even of a search; a winner that is the reference itself has a speed-up of 1."""
    reference, same = result.reference, Interval(value=1.0, low=1.0, high=1.0)
    repeats = rates(result.repeats_of(reference)) if reference else []
    rate = statistics.geometric_mean(repeats) if repeats else reference.steps_per_s if reference else None
    is_winner = reference is not None and reference.configuration == result.best.configuration
    measured = result.speed_up.ratio if result.speed_up else None
    gain = same if is_winner else measured
    batch = reference.configuration.global_batch if reference else None
    return realised(spent, problem, gain, reference=result.reference_kind, reference_rate=rate, global_batch=batch)


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


def rates(repeats: Sequence[Trial]) -> list[float]:
    """Return the measured throughputs of trials, steps per second."""
    return [trial.steps_per_s for trial in repeats if trial.steps_per_s]
