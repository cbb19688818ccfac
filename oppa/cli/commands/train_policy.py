"""`oppa train-policy JOB`: learn a policy that gives each worker a batch of its own, on simulated runs of a job."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.errors import InputError, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oppa.control.rl.episode import EpisodeTask
    from oppa.control.rl.evaluation import PolicyScore
    from oppa.control.rl.reward import Reward
    from oppa.problem.problem import Problem
    from oppa.simulator.learning_curve import LearningCurve

JOB = "The job file: its data-parallel workers, their batch in the beginning, and the size of its gradients are taken."
EPISODES = "Training runs to learn from."
ALGORITHM = "`ppo`, with clipping and advantages (needs the extra `train_policy`); or `paper`, the cumulative reward alone."
CURVE = "What the model learns from samples: the name of a measured curve of oppa's."
RUN = "A run of `oppa train` that tells it instead, with `validation` in [train]. Repeat it for runs with other batch sizes."
FORM = "Of the reward: `goodput`; `paper`, as DYNAMIX writes it; or `per-sample`, the same with its slips mended."
REWARD = "A constant of the reward, `delta=0.5`: alpha, beta, delta or eta. Repeat it for more."
WINDOW = "Steps between two decisions."
SETTING = "With --weights: the configuration that the job runs in, `dp=4,micro_batch=16`."
WEIGHTS = "Learn on from these, on real runs of the job: each episode is one, below runs/."
SAMPLES = "With --weights: where an episode ends, instead of the job file's [train]."
OUT = "Where the policy is written; policies/JOB.safetensors unless given, with --weights policies/JOB-runs.safetensors."


def train_policy(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(metavar="JOB", help=JOB, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="[SETTING]", help=SETTING, show_default=False)] = "",
    episodes: Annotated[int, typer.Option(min=1, help=EPISODES)] = 20,
    algorithm: Annotated[str, typer.Option(metavar="NAME", help=ALGORITHM)] = "ppo",
    curve: Annotated[str, typer.Option(metavar="NAME", help=CURVE)] = "digits",
    run: Annotated[list[Path] | None, typer.Option(metavar="FOLDER", help=RUN)] = None,
    reward: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=REWARD)] = None,
    form: Annotated[str, typer.Option(metavar="NAME", help=FORM)] = "goodput",
    window: Annotated[int, typer.Option(min=1, help=WINDOW)] = 20,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help=WEIGHTS)] = None,
    samples: Annotated[int | None, typer.Option(min=1, help=SAMPLES)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print how it did as JSON on stdout.")] = False,
) -> None:
    """Learn a policy that gives each data-parallel worker a batch of its own (DYNAMIX), and judge it on workers that it never saw.

    Exit codes: 0 learned, 2 wrong input, 3 environment lacking; with --weights also those of `oppa train`.
    """
    from oppa import __version__
    from oppa.cli.views.progress import Counted
    from oppa.control.rl.algorithms import ALGORITHMS, learned
    from oppa.control.rl.evaluation import scores
    from oppa.control.rl.weights import require_writable
    from oppa.problem.job import load_job

    if algorithm not in ALGORITHMS:
        raise InputError(f"`--algorithm {algorithm}` is unknown", hint=nearest(algorithm, ALGORITHMS))
    problem = load_job(job)
    path = out or Path("policies", f"{problem.name}{'-runs' if weights else ''}.safetensors")
    if weights or setting or samples:
        found_on = _real(context, job, setting, weights, episodes=episodes, samples=samples, seed=seed, out=path)
        if as_json:
            typer.echo(json.dumps({"policy": str(path), "episodes": found_on}, indent=1))
        return
    wanted = dataclasses.replace(_reward(form, reward or []), adaptive=problem.training.optimizer == "adamw")
    task = _task(problem, _curve(curve, run or [], problem), wanted, window)
    told = {
        "oppa": __version__,
        "command": shlex.join(["oppa", *sys.argv[1:]]),
        "job": problem.name,
        "curve": [*map(str, run or [])] or curve,
    }
    require_writable(path)
    with Counted("episodes", episodes) as progress:

        def ended(number: int, rewards: "NDArray[np.float64]") -> None:
            reward = float(rewards.mean())
            line = f"episode {number + 1} of {episodes}: a window is worth {reward:+.3f}"
            progress.count(number + 1, episodes, f"reward {reward:+.3f}", line)

        new = learned(task, algorithm, episodes=episodes, seed=seed, provenance=told, told=ended)
        found = scores(task, new, seed=seed)
    new.save(path)
    _print(path, found)
    if as_json:
        typer.echo(json.dumps({"policy": str(path), "scores": [dataclasses.asdict(each) for each in found]}, indent=1))


def _real(context: typer.Context, job: Path, setting: str, weights: Path | None, **how: Any) -> list[dict[str, object]]:
    """Continue to learn from real runs, and return one entry per episode."""
    from oppa.cli.commands.train_policy_on_runs import learn_on, require_alone
    from oppa.cli.resolve_configuration import resolve_configuration

    if weights is None:
        raise InputError("a setting or `--samples` without `--weights`", hint="learn on simulated runs first, then on real ones from there")
    simulated = ("algorithm", "curve", "run", "reward", "form", "window")
    asked = {name: context.get_parameter_source(name) for name in simulated}
    require_alone([f"--{name}" for name, source in asked.items() if source is not None and source.name == "COMMANDLINE"])
    problem, configuration = resolve_configuration(job, setting)
    if configuration is None:
        raise InputError("it is not said which configuration the job runs in", hint="give a setting: `dp=4,micro_batch=16`")
    return learn_on(problem, configuration, weights, **how)


def _task(problem: "Problem", curve: "LearningCurve", reward: "Reward", window: int) -> "EpisodeTask":
    """Return the simulated form of a job; raises InputError if its workers cannot have batches of their own."""
    from oppa.control.rl.actions import Actions
    from oppa.control.rl.episode import EpisodeTask

    workers, batch = problem.cluster.devices, problem.global_batch
    if workers < 2 or batch < workers:
        hint = "give the job two devices or more, and a sample for each"
        raise InputError(f"{workers} workers with a batch of {batch} have nothing to share out", hint=hint)
    return EpisodeTask(
        curve=curve,
        actions=Actions.scaled(batch // workers),
        reward=reward,
        workers=workers,
        local_batch=batch // workers,
        window=window,
        gradient_bytes=4.0 * problem.model.parameter_count,
    )


def _curve(name: str, runs: Sequence[Path], problem: "Problem") -> "LearningCurve":
    from oppa.simulator.learning_curve import LearningCurve
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import RunSpec

    if not runs:
        return LearningCurve.load(name)
    for each in runs:
        RunSpec.read(each)  # raises an error if the folder is no run
    return LearningCurve.of([ledger.standing(ledger.read(each)) for each in runs], problem.run_options.scaling)


def _reward(form: str, settings: Sequence[str]) -> "Reward":
    from oppa.control.rl.reward import CONSTANTS, Reward

    values = dict[str, float]()
    for text in settings:
        name, _, value = text.partition("=")
        if name not in CONSTANTS:
            raise InputError(f"`--reward {text}`: no constant is called `{name}`", hint=nearest(name, CONSTANTS))
        try:
            values[name] = float(value)
        except ValueError:
            raise InputError(f"`--reward {text}` is no number", hint=f"as in `{name}=0.1`") from None
    return Reward.usual(form, **values)  # type: ignore[arg-type]


def _print(path: Path, found: "Sequence[PolicyScore]") -> None:
    from oppa.cli.views import style
    from oppa.units import format_seconds

    table = style.table(["policy", ">seconds to the accuracy", ">of the best static", ">not reached"])
    for each in found:
        seconds = format_seconds(each.seconds) if each.seconds is not None else "never"
        share = f"{each.of_static:.0%}" if each.of_static is not None else ""
        table.add_row(each.name, seconds, share, str(each.failed) if each.failed else "")
    style.err().print(table)
    style.err().print(f"policy  {path}", markup=False)
