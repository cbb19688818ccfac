"""Describe a study in sentences: the winner, its speed-up, and how certain that is."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oppa.problem.configuration import Configuration
from oppa.problem.objective import Objective
from oppa.report.study import each_once, tied
from oppa.study import Trial
from oppa.study.records import SEARCH
from oppa.tuning.comparison import WinnerComparison, rates
from oppa.tuning.equivalence import Equivalence
from oppa.tuning.verification import Interval, SpeedUp
from oppa.tuning.verify.verdict import words_of
from oppa.units import format_number, format_uncertain

if TYPE_CHECKING:
    from oppa.report.sensitivity import Sensitivity

MATTERS = 0.02
"""Relative loss of throughput that is within the variation between trials of one configuration."""


def speed(trial: Trial, result: WinnerComparison, objective: Objective) -> str:
    """Return a contender's objective as text: the mean of its repeats with their 95% interval.

    If there are too few repeats for an interval, it is their mean alone. Without repeats, it is the trial's with its standard deviation.
    """
    if found := _intervals(result).get(trial.configuration):
        return f"{format_number(objective.of(found.value))} [{interval(found.low, found.high, objective)}]"
    if repeats := rates(result.repeats_of(trial)):
        return format_number(objective.of(statistics.geometric_mean(repeats)))
    return measured(trial, objective)


def measured(trial: Trial, objective: Objective) -> str:
    """Return the objective of one trial as text, with its standard deviation."""
    rate = trial.steps_per_s or 0.0
    return format_uncertain(objective.of(rate), objective.stddev_of(rate, trial.stddev or 0.0))


def interval(low: float, high: float, objective: Objective) -> str:
    """Return an interval of rates as text, as one of the objective."""
    return " – ".join(map(format_number, sorted(map(objective.of, (low, high)))))


def _intervals(result: WinnerComparison) -> dict[Configuration, Interval]:
    found = dict[Configuration, Interval]()
    for other, compared in ((result.runner_up, result.margin), (result.reference, result.speed_up)):
        if other and compared:
            found |= {result.best.configuration: compared.winner, other.configuration: compared.other}
    return found


def verdicts(result: WinnerComparison, trials: Sequence[Trial], objective: Objective, learned: Equivalence | None = None) -> list[str]:
    """Return sentences on the winner: its speed-up, whether it learns as the default or the baseline does, and the ties with it."""
    found = [_speed_up(result, objective), _failure(result), _margin(result, objective), _learning(learned, result) if learned else ""]
    if result.missing(2):
        found.append("Not verified yet: these are single trials. Run oppa tune with this study again to repeat the contenders.")
    feasible = each_once([trial for trial in trials if trial.purpose == SEARCH])
    if others := len(tied(feasible)) - 1 if feasible else 0:
        why = "the 95% interval of the difference contains 0"
        rest = len(feasible) - 1
        tying = f"{others} of the {rest} other completed configurations tie" if rest > 1 else "the only other completed configuration ties"
        found.append(f"In the search, {tying} with the best: {why}.")
    return [sentence for sentence in found if sentence]


def equivalent(learned: Equivalence, result: WinnerComparison) -> str:
    """Return a phrase on whether the winner's losses equal those of the configuration that it is compared with."""
    tolerance = f"tolerance {learned.tolerance:g}"
    if learned.holds:
        return f"as {result.reference_in_words} does: losses of {learned.steps} steps agree to {learned.deviation:.0e} ({tolerance})"
    if not learned.steps:
        return f"unknown: the winner reports no loss of a step for which {result.reference_in_words} reports one"
    if learned.unknown:
        differ = f"losses differ by {learned.own_deviation:.2g} in two repeats of {result.reference_in_words} itself"
        return f"unknown: {differ} ({tolerance}); seed your program"
    by = f"by {learned.deviation:.2g} " if math.isfinite(learned.deviation) else "as one is not a finite number "
    where = f"{by}at step {learned.at_step} ({tolerance})"
    return f"not as {result.reference_in_words} does: losses differ {where}; check how your program applies the configuration"


def _learning(learned: Equivalence, result: WinnerComparison) -> str:
    compared = equivalent(learned, result)
    if learned.unknown:
        return f"Whether it learns as {result.reference_in_words} does is {compared}."
    return f"It learns {compared}." if learned.holds else f"Warning: it learns differently, {compared}."


def _speed_up(result: WinnerComparison, objective: Objective) -> str:
    words = words_of(objective)
    if result.reference is None:
        return f"The {words['gain']} over the default configuration is unknown: no default configuration that fits was measured."
    if result.reference.configuration == result.best.configuration:
        return f"This is {result.reference_in_words}: no configuration that was measured is {words['faster']}."
    return f"Compared with {result.reference_in_words}: {_compared(result.speed_up, result, objective)}." if result.speed_up else ""


def _failure(result: WinnerComparison) -> str:
    if result.failure is None:
        return ""
    ended = f"{result.failure.configuration.id}, ended in trial {result.failure.id}: {result.failure.outcome.replace('_', ' ')}"
    return f"The baseline, {ended}. The default configuration replaces it."


def _margin(result: WinnerComparison, objective: Objective) -> str:
    second, reference = result.runner_up, result.reference
    if second is None or result.margin is None or (reference and second.configuration == reference.configuration):
        return ""
    return f"Compared with the runner-up, {second.configuration.id}: {_compared(result.margin, result, objective)}."


def _compared(speed_up: SpeedUp, result: WinnerComparison, objective: Objective) -> str:
    verdict = "tied, as the 95% interval contains 1" if speed_up.tied else "the 95% interval excludes 1"
    ratio = f"{speed_up.ratio.value:.2f} times {words_of(objective)['as_fast']} [{speed_up.ratio.low:.2f} – {speed_up.ratio.high:.2f}]"
    return f"{ratio} in {len(result.repeats_of(result.best))} interleaved repeats each; {verdict}"


def early_termination(trials: Sequence[Trial], *, q_max: int) -> str:
    """Return sentences on how many trials ended as slower or as precise, and how many steps that saved."""
    searched = [trial for trial in trials if trial.purpose == SEARCH and trial.counts]
    slower = [len(trial.step_times_s) for trial in searched if trial.outcome == "terminated_early"]
    precise = [steps for trial in searched if trial.outcome == "completed" and (steps := len(trial.step_times_s)) < q_max]
    if not slower and not precise:
        return "No search trial ended early."
    ways = [("slower", slower), ("precise", precise)]
    said = [f"{len(steps)} ended as {how} after a median of {statistics.median(steps):g} steps" for how, steps in ways if steps]
    saved = sum(max(0, q_max - done) for done in [*slower, *precise])
    share = saved / (saved + sum(len(trial.step_times_s) for trial in searched))
    return (
        f"Of {len(searched)} search trials, {' and '.join(said)} in place of {q_max}. "
        f"This saved {saved} steps, {share:.0%} of those that the search would have taken."
    )


def sensitivity(known: "Sensitivity") -> str:
    """Return a phrase on the effect of one parameter."""
    unfit = f" No configuration is predicted to fit with {_either(known.unfit)}." if known.unfit else ""
    if known.loss < MATTERS:
        return f"changes the throughput by less than {MATTERS:.0%}.{unfit}"
    return f"best at {known.best}; {known.worst} costs {known.loss:.0%}.{unfit}"


def _either(values: Sequence[object]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last
