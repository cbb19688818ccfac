"""Report how trials of a mixture of experts route tokens: an untrained router balances itself within hundreds of steps."""

from oppa.problem.problem import Problem
from oppa.problem.writes_file import writes
from oppa.trials.runner import load_runner

STEPS = 500
"""Steps of a trial that is proposed to measure a router that has learned to balance its load."""
BALANCED = "balanced in trials by {option}; the winner's script routes as your line does, and its fullest expert may need more memory"
UNTRAINED = (
    "trials measure an untrained router, which sends some experts more tokens than later; "
    "measure more steps after the search: oppa verify STUDY --set limits.q_max={steps}"
)


def routing(problem: Problem) -> str:
    """Return how trials route tokens, in words; empty without experts, and for simulated trials."""
    model = problem.stated_model
    if model is None or model.experts <= 1 or load_runner(problem.runner).in_process:
        return ""
    option = _forced(problem)
    return BALANCED.format(option=option) if option else UNTRAINED.format(steps=STEPS)


def _forced(problem: Problem) -> str:
    """Return the option of the trials' launch line that balances the routing; empty if there is none."""
    options = {option.words for table in writes().frameworks.values() for option in table.options.values() if option.kind == "balance"}
    return next((word for word in (problem.command.argv if problem.command else ()) if word in options), "")
