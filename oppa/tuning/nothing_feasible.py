"""State why no configuration of a study could run, and which constraint binds."""

from collections import Counter
from collections.abc import Sequence

from oppa.errors import InfeasibleError
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.trials.monitor import HANG
from oppa.trials.trial_folder import Outcome
from oppa.tuning.device_budget import DeviceBudget, limit_in_words
from oppa.tuning.repeated_failures import last_output, remedy
from oppa.units import format_bytes, format_seconds


def nothing_feasible(study: Study, problem: Problem) -> InfeasibleError:
    """Return the error for a study without a feasible trial; it names the constraints that bind."""
    every = study.trials()
    trials = [trial for trial in every if trial.counts]
    failed = [trial for trial in trials if not trial.feasible]
    if not failed and every and _budget_is_spent(study, problem, every):
        message = f"no trial ran to its end: the budget of {limit_in_words(problem)} is spent"
        return InfeasibleError(message, hint="raise `max_gpu_hours`, or lower `q_max`; the same study continues")
    if not failed and every:
        message = f"no trial ran to its end: the last one was interrupted, {every[-1].cause}"
        return InfeasibleError(message, hint="run the same command again; the same study continues")
    if not failed:
        return InfeasibleError(
            "no trial was run: the budget is spent", hint="raise `trials`, `wall_time` or `max_gpu_hours` under [limits]"
        )
    counts = Counter(trial.outcome for trial in failed)
    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common())
    message = f"none of the {len(trials)} trials could run: {outcomes}" if len(trials) > 1 else f"the only trial could not run: {outcomes}"
    if len(failed) < len(trials):
        message = f"no repeat of a configuration could run: of {len(trials)} trials and repeats, {outcomes}"
    last = next((trial for trial in reversed(failed) if trial.outcome == "failed"), None)
    if last is not None:
        message += f"\n\nthe last failure: {last.cause}{last_output(last)}"
    hints = [_remedy(outcome, study, problem) for outcome in counts]
    if last is not None and not last.step_times_s:
        hints.append(remedy(last, problem))
    return InfeasibleError(message, hint="\n      ".join(hints))


def _budget_is_spent(study: Study, problem: Problem, trials: Sequence[Trial]) -> bool:
    """Return whether the limit on device time ended a trial, or has too little left for another one."""
    budget = DeviceBudget(problem=problem, study=study, ending_s=0.0)
    if budget.total_s is None:
        return False
    ended = any(trial.cause == budget.spent_in_words() for trial in trials)
    return ended or not budget.allows(budget.request(trials, most_s=problem.limits.trial_time_s))


def _remedy(outcome: Outcome, study: Study, problem: Problem) -> str:
    if outcome == "out_of_memory":
        limit = format_bytes(problem.cluster.usable_bytes)
        return f"raise the memory limit of {limit}, lower `seq_len` or the batch, or use more devices"
    if outcome == "timed_out" and problem.command and not any(trial.step_times_s for trial in study.trials()):
        longer = f"raise `trial_time = {format_seconds(problem.limits.trial_time_s)}` if it takes longer to start"
        return f"correct [command.steps], and let the program print every step, unbuffered; {longer}"
    if outcome == "timed_out" and not all(trial.cause.startswith(HANG) for trial in study.trials() if trial.outcome == outcome):
        return f"`trial_time = {format_seconds(problem.limits.trial_time_s)}` is too short: raise it, or lower `q_max`"
    return f"read the logs of the {outcome.replace('_', ' ')} trials in `{study.folder / 'trials'}`"
