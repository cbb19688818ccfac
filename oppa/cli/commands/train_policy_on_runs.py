"""`oppa train-policy JOB --weights FILE`: continue to learn on real runs of the job, one run per episode."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oppa.cli.views import style
from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem
    from oppa.training.run.ledger import Line

LEARNING = "learn"
"""Name of the policy of these runs."""


def learn_on(
    problem: "Problem", configuration: "Configuration", weights: Path, *, episodes: int, seed: int, out: Path
) -> list[dict[str, object]]:
    """Train the job `episodes` times, each time from the start with its own seed; save the weights after each episode.

    Returns:
        One entry per episode: the folder of its run, the mean reward of a worker's window, seconds, and accuracy on held-out samples.

    Raises:
        InputError: the weights cannot be read, or runs are too short.
        typer.Exit: a run was stopped or failed; the exit code is that of `oppa train`.
    """
    from oppa.cli.views.run_view import RunSessionView, print_ended
    from oppa.control.rl.online import DrawingPolicy, RunLearner, require_teaching
    from oppa.control.rl.weights import Weights, require_writable
    from oppa.control.training_session.training import run_under
    from oppa.training.run import ledger
    from oppa.tuning.session import new_folder

    learner, found = RunLearner(Weights.load(weights)), list[dict[str, object]]()
    require_teaching(problem, configuration, learner.weights.window)
    require_writable(out)
    for number in range(episodes):
        folder, own = new_folder(problem.name, among="runs"), seed + number
        episode = dataclasses.replace(problem, training=dataclasses.replace(problem.training, seed=own))
        drawing = partial(DrawingPolicy, weights=learner.weights, seed=own)
        view = RunSessionView()
        with view.caught():
            result = run_under(episode, configuration, policy=LEARNING, make=drawing, folder=folder, callback=view)
        if code := print_ended(result):
            style.err().print(f"learned from {number} of {episodes} episodes" + (f": {out}" if number else ""), markup=False)
            raise typer.Exit(code)
        lines = ledger.standing(ledger.read(folder))
        worth = learner.update(lines, drawing(None).chosen)
        learner.weights.save(out)
        found.append({"run": str(folder), "worth": worth, **_last_values(lines)})
        style.err().print(f"episode {number + 1} of {episodes}: mean reward {worth:+.3f} a window; written: {out}", markup=False)
    return found


def require_alone(given: Sequence[str]) -> None:
    """Raise InputError for options that the weights already determine."""
    if given:
        raise InputError(f"`{given[0]}` cannot be given with `--weights`", hint="remove it: the weights keep their first value")


def _last_values(lines: "Sequence[Line]") -> dict[str, float | None]:
    from oppa.training.run import ledger

    steps = [line for line in lines if line["event"] == ledger.STEP]
    accuracies = [line["accuracy"] for line in lines if line["event"] == ledger.VALIDATED]
    return {"seconds": steps[-1]["elapsed_s"], "accuracy": accuracies[-1] if accuracies else None}
