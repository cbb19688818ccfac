"""Report how trials of a mixture of experts route tokens: an untrained router balances itself within hundreds of steps."""

from collections.abc import Collection

from oppa.problem.problem import Problem
from oppa.problem.writes_file import writes
from oppa.study import Trial
from oppa.trials.runner import load_runner
from oppa.tuning.longer_trials import proposed_trial_time

STEPS, SETTLE = 500, 300
"""Steps of a proposed trial of a router that has learned to balance its load, and the first of them that do not count."""
BALANCED = "balanced in trials by {option}; the winner's script routes as your line does, and its fullest expert may need more memory"
UNTRAINED = (
    "trials measure an untrained router, which sends some experts more tokens than later; "
    "measure more steps after the search: "
    "oppa verify STUDY --runner-up --set limits.q_max={steps} --set limits.settle={settle} --set limits.trial_time={trial_time}"
)
SETTLED = "trials leave out their first {settle} steps, in which an untrained router learns to balance its load"
LATER = "TIME, which oppa show STUDY computes from the measured steps"


def routing(problem: Problem, contenders: Collection[Trial] = ()) -> str:
    """Return how trials route tokens, in words; empty without experts, and for simulated trials.

    Args:
        contenders: Trials of the configurations that are compared in the end; empty if they are not known yet.
    """
    model = problem.stated_model
    if model is None or model.experts <= 1 or load_runner(problem.runner).in_process:
        return ""
    option = _forced(problem)
    if option:
        return BALANCED.format(option=option)
    if problem.limits.settle:
        return SETTLED.format(settle=problem.limits.settle)
    return UNTRAINED.format(steps=STEPS, settle=SETTLE, trial_time=proposed_trial_time(contenders, STEPS) if contenders else LATER)


def _forced(problem: Problem) -> str:
    """Return the option of the trials' launch line that balances the routing; empty if there is none."""
    options = {option.words for table in writes().frameworks.values() for option in table.options.values() if option.kind == "balance"}
    return next((word for word in (problem.command.argv if problem.command else ()) if word in options), "")
