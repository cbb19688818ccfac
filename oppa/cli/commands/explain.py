"""`oppa explain JOB dp=2,tp=1`: explain why a configuration is not the best, or not valid."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.cli.job_options import Changes, Command, ModelWords, problem_of, refuse_command, settings_of

if TYPE_CHECKING:
    from oppa.problem.problem import Problem
    from oppa.study import Trial

JOB = "Job file, or folder of a study. Omit it if a launch line follows `--`."
CONFIGURATION = "Values such as `dp=2,tp=1`, with the other parameters free; or a configuration's id."
STUDY = "Folder of a study of the job; without one, the prior predicts."


def explain(
    job: Annotated[str, typer.Argument(metavar="JOB|STUDY", help=JOB, show_default=False)] = "",
    setting: Annotated[str, typer.Argument(metavar="CONFIGURATION", help=CONFIGURATION, show_default=False)] = "",
    command: Command = None,
    *,
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STUDY)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    changes: Changes = None,
    model: ModelWords = None,
) -> None:
    """Explain a configuration: the constraint that forbids it, how its trial failed, or how far it is from the best.

    If several configurations match, the best predicted one is explained. The cost model
    divides its memory and its step time by cause. If a trial measured something else, the
    coefficient of priors/ that explains the difference is named.

    Exit codes: 0 explained, 2 wrong input, 3 environment lacking.
    """
    from oppa.cli.views import explanation_json, explanation_view
    from oppa.cli.views.summary import traced_and_shown, warn_of_unknown_device
    from oppa.errors import InputError
    from oppa.problem.selector import find

    if not job:
        explained = f"oppa explain dp=2,tp=1 -- {shlex.join(command)}" if command else "oppa explain job.toml dp=2,tp=1"
        raise InputError("`oppa explain` lacks a configuration", hint=f"add one: `{explained}`")
    if not setting and not command:
        raise InputError(f"`{job}` names no configuration to explain", hint=f"add one: `oppa explain {job} dp=2,tp=1`")
    source, setting = (Path(job), setting) if setting else (None, job)
    problem, folder, trials = _problem_and_trials(source, study, command or (), settings_of(changes, model))
    if problem.has_prior:
        warn_of_unknown_device(problem.cluster)
    candidates = problem.candidates()
    asked, matches = find(setting, candidates)
    if not len(matches):
        view = explanation_json if as_json else explanation_view
        view.print_violations(setting, asked, problem, candidates)
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
        explanation_json.print_explanation(known, costs, matches=len(matches))
    else:
        explanation_view.print_explanation(known, costs, setting, len(matches), folder)


def _problem_and_trials(
    job: Path | None, named: Path | None, command: Sequence[str], changes: Sequence[str]
) -> "tuple[Problem, Path | None, list[Trial]]":
    """Return the problem, the folder of its study if there is one, and the study's trials.

    Raises:
        InputError: the job and the study do not belong together, or both arguments are studies.
    """
    from oppa.errors import InputError
    from oppa.study import Study

    if job is None and named is not None:
        raise InputError(f"`--study {named}` needs its job file", hint=f"give only the study: `oppa explain {named} ...`")
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
