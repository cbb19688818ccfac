"""Run trials, and explain how to continue after an interruption; `oppa tune`, `oppa profile` and `oppa train` share this code."""

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.errors import EnvironmentLackingError

if TYPE_CHECKING:
    from oppa.cli.views.search_view import Interruption
    from oppa.launchers.resolve import LaunchRequest
    from oppa.problem.problem import Problem
    from oppa.simulator.trial_simulator import TrialSimulator
    from oppa.study import Study
    from oppa.trials.runner import Runner
    from oppa.tuning.search import RunTrial


@contextlib.contextmanager
def running_trials(
    runner: "Runner",
    problem: "Problem",
    study: "Study",
    request: "LaunchRequest",
    interruption: "Interruption",
    *,
    again: list[str],
    seed: int,
    simulator: "TrialSimulator | None" = None,
) -> Iterator["RunTrial"]:
    """Yield the function that runs the trials of a runner: on hosts, in the simulator, or by replay.

    Args:
        again: The words after `oppa` that continue this study, for other tuners of it.
        simulator: The simulator that answers trials if they are replayed; None: the problem's own.
    """
    if runner.in_process:
        from oppa.simulator.executor import SimulatedExecutor
        from oppa.simulator.simulator import Simulator

        yield SimulatedExecutor(simulator or Simulator.of(problem), seed=seed)
        return
    from oppa.launchers.parallel_tuners import parallel_tuners
    from oppa.launchers.resolve import open_backend
    from oppa.trials.trial import run_trial

    grace_s, cluster = problem.limits.grace_s, problem.cluster
    with (
        open_backend(request, cluster, study.folder, name=problem.name, grace_s=grace_s, on_tick=interruption.check) as engine,
        engine.launcher(runner, study=study.uuid, grace_s=grace_s) as launcher,
        parallel_tuners(engine, again, study.folder, grace_s=grace_s),
    ):
        launcher.prepare()  # its imports overlap with ours
        yield functools.partial(run_trial, launcher)


@contextlib.contextmanager
def going_on(again: list[str]) -> Iterator[None]:
    """Print how to continue if the work is interrupted or the environment is lacking; the error is passed on."""
    try:
        yield
    except (KeyboardInterrupt, EnvironmentLackingError):
        say_how_to_go_on(again)
        raise


def say_how_to_go_on(again: list[str]) -> None:
    """Print the command line that continues the work, to stderr."""
    from oppa.cli.views import style
    from oppa.problem.allocation import read_netlab

    line = shlex.join([*read_netlab().get("command", []), "oppa", *again])
    style.err().print(f"\ninterrupted; nothing is lost. Go on with\n\n  {line}\n", markup=False)


def again_with(option: str, folder: Path) -> list[str]:
    """Return the words after `oppa` that continue with this folder, which `option` names."""
    own, dashes, command = _cut(sys.argv[1:])
    named = any(word == option or word.startswith(f"{option}=") for word in own)
    return [*own, *([] if named else [option, str(folder)]), *dashes, *command]


def _cut(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before `--`, the `--` itself if there is one, and the words after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at : at + 1], words[at + 1 :]
