"""`oppa explain JOB dp=2,tp=1`: explain why a configuration is not the best, or not valid."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.cli.job_options import Changes, Command, problem_of, refuse_command

if TYPE_CHECKING:
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.problem.selector import Setting
    from oppa.study import Prediction, Trial
    from oppa.tuning.cost_breakdown import CostBreakdown
    from oppa.tuning.explanation import Explanation

JOB = "Job file, or a study's folder. Without one, a launch line after `--`."
SETTING = "Values such as `dp=2,tp=1`, with the other parameters free; or a configuration's id."
STUDY = "Folder of a study of the job; without one, the prior predicts."
UNLIKELY = 0.05
"""Probability of fitting in memory below which a configuration is not expected to fit."""


def explain(
    job: Annotated[str, typer.Argument(metavar="[JOB|STUDY]", help=JOB, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="SETTING", help=SETTING, show_default=False)] = "",
    command: Command = None,
    *,
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STUDY)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    changes: Changes = None,
) -> None:
    """Explain a configuration: the constraint that forbids it, how its trial failed, or how far it is from the best.

    If several configurations match, the best predicted one is explained. The cost model
    divides its memory and its step time by cause. If a trial measured something else, the
    coefficient of priors/ that explains the difference is named.
    """
    from oppa.cli.views.explanation_json import print_explanation, print_violations
    from oppa.cli.views.summary import traced_and_shown, warn_of_unknown_device
    from oppa.problem.selector import find

    source, setting = (Path(job), setting) if setting else (None, job)
    problem, folder, trials = _question(source, study, command or (), changes or ())
    if problem.has_prior:
        warn_of_unknown_device(problem.cluster)
    candidates = problem.candidates()
    asked, matches = find(setting, candidates)
    if not len(matches):
        if as_json:
            print_violations(setting, asked, problem, candidates)
        else:
            _print_obstacles(setting, asked, problem, candidates)
        return
    import torch

    from oppa.tuning.cost_breakdown import break_down
    from oppa.tuning.explanation import designer_of, explain

    problem = traced_and_shown(problem) if problem.has_prior else problem
    designer = designer_of(problem, candidates, trials)
    chosen = designer.most_promising(torch.from_numpy(matches))
    known = explain(designer, problem, candidates, chosen, trials)
    costs = break_down(designer, problem, candidates, chosen, known)
    if as_json:
        print_explanation(known, costs, matches=len(matches))
    else:
        _print(known, costs, setting, len(matches), folder)


def _question(
    job: Path | None, named: Path | None, command: Sequence[str], changes: Sequence[str]
) -> "tuple[Problem, Path | None, list[Trial]]":
    """Return the problem, the folder of its study if there is one, and the study's trials.

    Raises:
        InputError: the job and the study do not belong together, or both arguments are studies.
    """
    from oppa.errors import InputError
    from oppa.study import Study

    folder = job if job is not None and job.is_dir() else named
    if folder is None or job is None:
        return problem_of(job, command, changes), None, []
    if job.is_dir():
        refuse_command(command, f"the study `{job}` has its own launch line")
    if job.is_dir() and changes:
        raise InputError(f"`--set {changes[0]}` cannot change the study `{job}`", hint="name the job file: a study has one problem")
    if job.is_dir() and named is not None:
        raise InputError(f"`{job}` and `{named}` are both studies", hint="give a job file with --study, or only one study")
    with Study(folder) as study:
        problem, trials = study.problem, study.trials()
    if not job.is_dir() and problem_of(job, command, changes).fingerprint != problem.fingerprint:
        raise InputError(
            f"`{folder}` is the study of another problem than `{job}`", hint=f"give only the study: `oppa explain {folder} ...`"
        )
    return problem, folder, trials


def _print_obstacles(text: str, asked: "Setting", problem: "Problem", candidates: "Candidates") -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.problem.selector import alternatives, violations

    lines = [f"[bold]{escape(text)}[/] is [red]not valid[/]"]
    for each in violations(problem.space, asked):
        lines += ["", f"  {escape(each.why)}", f"  [cyan]{escape(each.rule)}[/]   here {escape(each.here)}"]
    others = alternatives(candidates, asked)
    lines += (
        ["", "[bold]valid instead[/]"]
        if others
        else ["", "no change of one parameter makes it valid: `oppa space` lists valid configurations"]
    )
    lines += [f"  {name} = {escape(' or '.join(map(str, values)))}" for name, values in others.items()]
    style.out().print("\n".join(lines))


def _print(known: "Explanation", costs: "CostBreakdown | None", text: str, matches: int, folder: Path | None) -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.cli.views.breakdown_view import print_breakdown

    name = known.configuration.id
    among = "the only configuration" if matches == 1 else f"the best predicted of {matches}"
    rows = {
        "tried": _tried(known, folder),
        "logs": _logs(known, folder),
        "before": _before(known),
        "predicted": _predicted(known),
        "memory": _memory(known),
        "best": _best(known),
        "framework": _framework(costs) if costs else "",
    }
    lines = [f"[bold cyan]{name}[/]" + ("" if text == name else f"   {among} with {escape(text)}"), _verdict(known), ""]
    style.out().print("\n".join([*lines, *(f"[bold]{title:<9}[/]  {text}" for title, text in rows.items() if text)]))
    if costs:
        print_breakdown(costs)


def _verdict(known: "Explanation") -> str:
    """Return the answer, in one line."""
    tried = known.tried
    if known.configuration == known.best:
        return f"it is the best {'measured' if known.best_measured else 'predicted'} configuration"
    if tried is not None and known.steps_per_s is None:
        return f"it was tried, and ended: [red]{tried.outcome.replace('_', ' ')}[/]"
    if tried is None and known.chance_of_fitting < UNLIKELY:
        return "it is not expected to [red]fit in memory[/]"
    share = f"[bold]{known.ratio:.2f}[/] times"
    if not known.objective.is_throughput:
        return f"it is {'' if tried else 'expected to be '}{share} as good as the best: {known.objective.better} is better"
    return f"it {'has' if tried else 'is expected to have'} {share} the throughput of the best"


def _tried(known: "Explanation", folder: Path | None) -> str:
    """Return what the trial measured, or how it failed."""
    from rich.markup import escape

    from oppa.cli.views import style

    tried = known.tried
    if tried is None:
        return "never" if folder else ""
    ended = f"trial {tried.id}, {style.outcome(tried.outcome)}"
    if tried.steps_per_s is None:
        return f"{ended}{f', rank {tried.rank}' if tried.rank is not None else ''}: {escape(tried.cause)}"
    times = f"{len(known.repeats)} repeats" if known.repeats else f"the mean of {known.trials} trials" if known.trials > 1 else ""
    sought, unit = known.objective, escape(known.objective.unit)
    repeated = f"; {style.objective(sought, known.steps_per_s)} {unit} in {times}" if times else ""
    measured = style.objective(sought, tried.steps_per_s, tried.stddev)
    return f"{ended}: {measured} {unit}, peak {style.memory(tried.memory_bytes)}{repeated}"


def _logs(known: "Explanation", folder: Path | None) -> str:
    """Return the folder with the logs of a trial that failed; empty if none did."""
    from rich.markup import escape

    tried = known.tried
    failed = tried is not None and tried.steps_per_s is None
    return escape(str(folder / "trials" / tried.folder_name)) if failed and tried and folder else ""


def _before(known: "Explanation") -> str:
    """Return the prediction before the trial, and whether its interval contains the measurement."""
    tried = known.tried
    if tried is None or tried.prediction is None:
        return ""
    predicted = f"{_rate(known, tried.prediction)} predicted"
    if tried.steps_per_s is None:
        return predicted
    return f"{predicted}: the measurement lies {'within' if tried.prediction.covers(tried.steps_per_s) else '[yellow]outside[/]'}"


def _predicted(known: "Explanation") -> str:
    """Return the present prediction for a configuration without a measured throughput, else an empty text."""
    if known.steps_per_s is not None:
        return ""
    if known.tried is not None or known.configuration == known.best:
        return _rate(known, known.prediction)
    better = "faster" if known.objective.is_throughput else "better"
    return f"{_rate(known, known.prediction)}; {better} than the best: {_likely(known.chance_of_winning)}"


def _memory(known: "Explanation") -> str:
    """Return the predicted memory of a configuration without a measured throughput, and the usable memory."""
    from oppa.units import format_bytes

    if known.steps_per_s is not None or (interval := known.prediction.memory_interval) is None:
        return ""
    low, high = map(format_bytes, interval)
    predicted = (
        f"{format_bytes(known.prediction.memory_bytes or 0)} \\[{low} - {high}] predicted, {format_bytes(known.usable_bytes)} usable"
    )
    return predicted if known.tried is not None else f"{predicted}; fits: {_likely(known.chance_of_fitting)}"


def _best(known: "Explanation") -> str:
    """Return the best configuration, with which this one is compared; empty if it is the best."""
    from rich.markup import escape

    from oppa.cli.views import style

    if known.best == known.configuration:
        return ""
    rate = f"{style.objective(known.objective, known.best_steps_per_s)} {escape(known.objective.unit)}"
    return f"[cyan]{known.best.id}[/], {rate} {'measured' if known.best_measured else 'predicted'}"


def _framework(costs: "CostBreakdown") -> str:
    """Return the framework whose memory and communication the cost model assumes, and the precision."""
    from rich.markup import escape

    return escape(f"{costs.framework.description} ({costs.framework_file}), in {costs.precision}")


def _rate(known: "Explanation", prediction: "Prediction") -> str:
    """Return what is predicted, in the unit of the objective, with its interval."""
    from rich.markup import escape

    from oppa.cli.views import style

    sought = known.objective
    low, high = map(style.number, sorted(map(sought.of, prediction.interval)))
    return f"{style.objective(sought, prediction.steps_per_s)} {escape(sought.unit)} \\[{low} - {high}]"


def _likely(chance: float) -> str:
    """Return a probability in words, never as 0% or 100%."""
    return f"{'less than 1%' if chance < 0.01 else 'more than 99%' if chance > 0.99 else f'{chance:.0%}'} likely"
