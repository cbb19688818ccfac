"""`oppa train-policy JOB`: learn a policy that sets each worker's batch, on simulated runs of a job."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.errors import InputError, require_known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oppa.cli.option_tables import LearningOptions
    from oppa.control.rl.evaluation import PolicyScore
    from oppa.problem.problem import Problem

JOB = "Job file, which states the data-parallel workers, the first batch, and the size of the gradients."
EPISODES = "Number of training runs to learn on."
ALGORITHM = "`ppo`, with clipping and advantages (needs the extra `learn`); or `paper`, with only the cumulative reward."
RUN = "Run of `oppa train` with `train.validation`, to take the learning curve from. Repeat it for other batch sizes."
SET = "Change a key of the job file, or an option of simulated runs, as listed above. Repeat it for more."
OWN = ("learning.", "reward.")
"""Prefixes of the keys that are options of simulated runs."""
CONFIGURATION = "With --weights: the configuration of the real runs, such as `dp=4,micro_batch=16`."
WEIGHTS = "Start from these weights, and continue to learn on real runs of the job, one per episode, below runs/."
OUT = "File of the policy; policies/JOB.safetensors by default, with --weights policies/JOB-runs.safetensors."


def train_policy(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(metavar="JOB", help=JOB, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="CONFIGURATION", help=CONFIGURATION, show_default=False)] = "",
    episodes: Annotated[int, typer.Option(min=1, help=EPISODES)] = 20,
    algorithm: Annotated[str, typer.Option(metavar="NAME", help=ALGORITHM)] = "ppo",
    run: Annotated[list[Path] | None, typer.Option(metavar="FOLDER", help=RUN)] = None,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help=WEIGHTS)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON on stdout.")] = False,
) -> None:
    """Learn a policy that sets the batch of each data-parallel worker (DYNAMIX), and score it on unseen workers.

    Options of simulated runs for --set, with their defaults:

    `learning.curve=digits`: name of the measured learning curve
    `learning.window=20`: steps between two decisions
    `reward.form=goodput`: form of the reward; or `paper`, as in DYNAMIX, or `per-sample`
    `reward.alpha`, `reward.beta`, `reward.delta`, `reward.eta`: constants of the form

    Exit codes: 0 learned, 2 wrong input, 3 environment lacking; with --weights also those of `oppa train`.
    """
    from oppa.cli.commands.train_policy_on_runs import require_alone
    from oppa.cli.option_tables import LearningOptions, read_options
    from oppa.cli.views import style
    from oppa.control.rl.algorithms import ALGORITHMS
    from oppa.problem.job import load_job

    require_known(algorithm, ALGORITHMS, f"`--algorithm {algorithm}` is unknown")
    own = [word for word in changes or () if word.startswith(OWN)]
    options, of_job = read_options(LearningOptions, own), [word for word in changes or () if word not in own]
    problem = load_job(job, settings=of_job)
    path = out or Path("policies", f"{problem.name}{'-runs' if weights else ''}.safetensors")
    if weights or setting:
        require_alone([*_given(context), *(f"--set {word}" for word in own)] if weights else ())
        result = {"episodes": _learn_on_runs(job, setting, weights, of_job, episodes=episodes, seed=seed, out=path)}
    else:
        found = _learn(problem, options, run or [], algorithm, episodes=episodes, seed=seed, out=path)
        _print(path, found)
        result = {"scores": [dataclasses.asdict(each) for each in found]}
    if as_json:
        style.print_json({"policy": str(path), **result})


def _learn(
    problem: "Problem", options: "LearningOptions", runs: Sequence[Path], algorithm: str, *, episodes: int, seed: int, out: Path
) -> "list[PolicyScore]":
    """Learn a policy on simulated runs of a job, write it, and return its scores."""
    from oppa import __version__
    from oppa.cli.views.progress import Counted
    from oppa.control.rl.algorithms import learned
    from oppa.control.rl.episode import EpisodeTask, curve_of_runs
    from oppa.control.rl.evaluation import scores
    from oppa.control.rl.weights import require_writable
    from oppa.redaction import redacted
    from oppa.simulator.learning_curve import LearningCurve

    reward, learning = options.reward.record(adaptive=problem.training.optimizer == "adamw"), options.learning
    curve = curve_of_runs(runs, problem.run_options.scaling) if runs else LearningCurve.load(learning.curve)
    task = EpisodeTask.of_job(problem, curve, reward=reward, window=learning.window)
    provenance = {
        "oppa": __version__,
        "command": shlex.join(redacted(["oppa", *sys.argv[1:]])),
        "job": problem.name,
        "curve": [*map(str, runs)] or learning.curve,
    }
    require_writable(out)
    with Counted("episodes", episodes) as progress:

        def ended(number: int, rewards: "NDArray[np.float64]") -> None:
            mean = float(rewards.mean())
            line = f"episode {number + 1} of {episodes}: mean reward {mean:+.3f} a window"
            progress.count(number + 1, episodes, f"reward {mean:+.3f}", line)

        policy = learned(task, algorithm, episodes=episodes, seed=seed, provenance=provenance, on_episode=ended)
        found = scores(task, policy, seed=seed)
    policy.save(out)
    return found


def _given(context: typer.Context) -> list[str]:
    """Return the options of simulated runs that were given on the command line."""
    asked = {name: context.get_parameter_source(name) for name in ("algorithm", "run")}
    return [f"--{name}" for name, source in asked.items() if source is not None and source.name == "COMMANDLINE"]


def _learn_on_runs(job: Path, setting: str, weights: Path | None, changes: Sequence[str], **how: Any) -> list[dict[str, object]]:
    """Continue to learn on real runs, and return one entry per episode."""
    from oppa.cli.commands.train_policy_on_runs import learn_on
    from oppa.tuning.resolve_configuration import resolve_configuration

    if weights is None:
        raise InputError("a setting without `--weights`", hint="learn on simulated runs first, then add `--weights FILE`")
    problem, configuration = resolve_configuration(job, setting, changes=changes)
    if configuration is None:
        raise InputError("the job has no configuration to run in", hint="give a setting: `dp=4,micro_batch=16`")
    return learn_on(problem, configuration, weights, **how)


def _print(path: Path, found: "Sequence[PolicyScore]") -> None:
    from oppa.cli.views import style
    from oppa.units import format_seconds

    table = style.table(["policy", ">time to accuracy", ">of the best static", ">not reached"])
    for each in found:
        seconds = format_seconds(each.seconds) if each.seconds is not None else "never"
        share = f"{each.of_static:.0%}" if each.of_static is not None else ""
        table.add_row(each.name, seconds, share, str(each.failed) if each.failed else "")
    style.err().print(table)
    best, learned = found[0], found[-1]
    if learned.seconds is None or (learned.of_static is not None and learned.of_static > 1):
        than = f"takes {learned.of_static:.0%} of the time of" if learned.seconds is not None else "misses the accuracy, unlike"
        than = than if best.seconds is not None else "misses the accuracy, as does"
        style.err().print(f"[yellow]warning[/] the learned policy {than} `{best.name}`: learn more, `--episodes`", soft_wrap=True)
    style.err().print(f"policy  {path}", markup=False)
