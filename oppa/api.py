"""The Python interface: what the commands do, as functions that print nothing.

    import oppa
    result = oppa.tune("job.toml", trials=20)
    print(result.best.configuration, result.best.steps_per_s)

Trials run in processes of their own, so a script needs no `__main__` guard, and may be a notebook or standard input. Ctrl-C raises
KeyboardInterrupt once the running trial has ended; the same call with `study=` continues the search.
"""

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem import job as job_file
from oppa.problem.problem import Problem
from oppa.redaction import redacted
from oppa.tuning import designers

if TYPE_CHECKING:
    from oppa.control.training_session import Callback as TrainCallback
    from oppa.control.training_session import TrainOptions, TrainResult
    from oppa.cost.ranking import PredictResult
    from oppa.problem.configuration import Configuration
    from oppa.simulator.benchmark_task import BenchmarkTask
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.outcomes import ProfileResult, TuneResult
    from oppa.tuning.plan import TunePlan
    from oppa.tuning.session import Callback, Setup
    from oppa.tuning.transfer import TransferredPrior
    from oppa.tuning.verify.plan import VerifyPlan
    from oppa.tuning.verify.result import VerifyResult

Resume = Callable[[Path], Sequence[str]]
"""Returns the words after `oppa` that continue a session in a folder; tuners on other hosts are started with them."""


def load_job(path: str | Path, *, settings: Sequence[str] = (), command: Sequence[str] = ()) -> Problem:
    """Return the problem that a job file describes.

    Args:
        path: The job file.
        settings: Changes of its keys before it is validated, as `--set` takes them: `["limits.trials=20"]`.
        command: The user's own launch line; it replaces that of the file's `[command]`.

    Raises:
        JobError: something in the file is wrong.
        InputError: the runner, the search space or one of their files is missing or wrong.
    """
    return job_file.load_job(Path(path), settings=settings, argv=command)


def load_line(command: Sequence[str], *, settings: Sequence[str] = (), study: str | Path | None = None) -> "LineJob":
    """Return the job that a launch line amounts to, without a job file.

    Args:
        command: The words of the line, such as `["torchrun", "--nproc-per-node", "8", "train.py"]`.
        settings: Changes of the job's keys, as `--set` takes them: `["model.layers=32"]`.
        study: Folder of a study; if it is one of the same line, its job is continued.

    Raises:
        InputError: the line cannot be understood, contradicts itself, or leaves nothing to vary.
    """
    from oppa.tuning.launch_line.line_job import load_line as load

    return load(command, settings=settings, study=Path(study) if study else None)


def tune(
    job: "str | Path | Problem | BenchmarkTask | LineJob",
    *,
    study: str | Path | None = None,
    trials: int | None = None,
    max_gpu_hours: float | None = None,
    designer: str = designers.DEFAULT,
    seed: int = 0,
    launcher: str | None = None,
    callback: "Callback | None" = None,
    resume: Resume | None = None,
) -> "TuneResult":
    """Find the fastest configuration of a job by short real trials, and verify it by repeats.

    Args:
        job: A job file, a problem, the job of a launch line, or a task whose trials are simulated.
        study: Folder of the study: an existing one is resumed. None: a new one below `studies/`.
        trials: Number of search trials of the whole study. None: the job's own.
        max_gpu_hours: Hours of all devices together that the whole study may take, verification included. None: the job's own.
        designer: Name of the designer.
        seed: Seed of the designer's random choices.
        launcher: Name of the launcher. None: the job's own.
        callback: Watches the session.
        resume: Returns the words after `oppa` that start further tuners on other hosts. None: this process tunes alone.

    Raises:
        InputError: the job, the study or an argument is wrong.
        InfeasibleError: no configuration could run; the study keeps the trials.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the search, which the same study resumes.
    """
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.nothing_feasible import nothing_feasible
    from oppa.tuning.outcomes import TuneResult
    from oppa.tuning.plan import expectation, is_expected
    from oppa.tuning.result import find_winner, verification_s
    from oppa.tuning.search import search
    from oppa.tuning.session import SessionOptions, new_folder, open_session
    from oppa.tuning.stopping import make_rule

    setup = _setup(job, designer, launcher, alone=resume is None, trials=trials, max_gpu_hours=max_gpu_hours)
    problem, candidates = setup.problem, setup.candidates
    folder = Path(study) if study is not None else new_folder(problem.name)
    facts = _facts(problem, "tune", resume, designer=designer, seed=seed)
    again = resume(folder) if resume else ()
    transfer = _transferred(problem, own=folder)
    beliefs = transfer.beliefs if transfer else None
    facts |= {"transfer": "; ".join(text for _, text in transfer.lines)} if transfer else {}
    expected = expectation(setup, designer, beliefs) if callback is not None and is_expected(problem, designer) else None
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=callback, again=again, expected=expected, transfer=transfer)
    if problem.proxy is not None:
        from oppa.tuning.proxy.ladder import climb

        return climb(setup, dataclasses.replace(options, again=(), expected=None), designer, beliefs)
    with open_session(setup, options) as executor:
        if isinstance(job, LineJob):
            job.store(executor.study.folder)
        made = designers.make_designer(designer, problem, candidates, seed=seed, beliefs=beliefs)
        rule = make_rule(problem.search_options.stopping or designers.STOPPING.get(designer, "never"), problem.limits)
        reserve = functools.partial(verification_s, candidates=candidates, designer=made, problem=problem)
        ended = search(executor, candidates, made, rule, reserve=reserve)
        found = find_winner(executor, candidates, made)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return TuneResult.of(executor, found, ended)


def plan(
    job: "str | Path | Problem | BenchmarkTask | LineJob",
    *,
    trials: int | None = None,
    max_gpu_hours: float | None = None,
    designer: str = designers.DEFAULT,
    seed: int = 0,
    launcher: str | None = None,
) -> "TunePlan":
    """Return the plan of a search with these arguments; start nothing, and make no folder.

    The job of a launch line has a plan also where its trials cannot start, such as that of a cluster on another machine.

    Raises:
        InputError: the job or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
    """
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.plan import make_plan, plan_elsewhere
    from oppa.tuning.session import with_limits

    try:
        setup = _setup(job, designer, launcher, alone=True, trials=trials, max_gpu_hours=max_gpu_hours)
    except EnvironmentLackingError as error:
        if not isinstance(job, LineJob):
            raise
        return plan_elsewhere(with_limits(job.problem, trials=trials, max_gpu_hours=max_gpu_hours), designer, error.message)
    return make_plan(setup, designer, seed=seed, transfer=_transferred(setup.problem))


def _setup(
    job: "str | Path | Problem | BenchmarkTask | LineJob", designer: str, launcher: str | None, *, alone: bool, **limits: float | None
) -> "Setup":
    """Return the setup of a search, with those limits changed that are not None.

    Raises:
        InputError: the designer is unknown, a limit is wrong, or what `Setup.of` raises.
    """
    from oppa.tuning.session import Setup, with_limits

    designers.require_designer(designer)
    asked: str | Path | Problem = job if isinstance(job, (str, Path, Problem)) else job.problem
    simulator = getattr(job, "simulator", None)
    problem = with_limits(_problem(asked), **limits)
    return Setup.of(problem, launcher, alone=alone, simulator=simulator)


def profile(
    job: str | Path | Problem,
    *,
    global_batch: str | Sequence[int],
    table: str | Path,
    exhaustive: bool = False,
    loss: float = 0.01,
    trials: int | None = None,
    wall_time_s: float | None = None,
    max_gpu_hours: float | None = None,
    seed: int = 0,
    callback: "Callback | None" = None,
    resume: Resume | None = None,
) -> "ProfileResult":
    """Measure throughput and memory at every global batch, for all configurations that could change a decision.

    Args:
        job: A job file, or a problem.
        global_batch: Global batches in sequences: `"16..1024"` doubles, `"16,24,32"` lists, as a list does.
        table: Folder of the table and of its study: an existing one is resumed.
        exhaustive: Measure every configuration that may fit, instead of those that could change a decision.
        loss: Share of goodput; the profile ends when the expected loss is below it at every noise scale.
        trials: Largest number of trials of the whole table. None: no limit; the job's own limit is for `tune`.
        wall_time_s: Largest number of wall-clock seconds. None: no limit.
        max_gpu_hours: Hours of all devices together that the whole table may take. None: the job's own.
        seed: Seed of random choices.
        callback: Watches the session.
        resume: Returns the words after `oppa` that start further tuners on other hosts. None: this process measures alone.

    Raises:
        InputError: the job, the table or an argument is wrong.
        InfeasibleError: no configuration could run; the study keeps the trials.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the profile; its table is valid, and the same call resumes it.
    """
    from oppa.problem.batches import over, parse_batches
    from oppa.tuning.nothing_feasible import nothing_feasible
    from oppa.tuning.outcomes import ProfileResult
    from oppa.tuning.profile import Keeper, make_profiler, seconds_of_all
    from oppa.tuning.profile import profile as measure
    from oppa.tuning.session import SessionOptions, Setup, open_session, with_limits

    if not 0 < loss < 1:
        raise InputError(f"`loss = {loss:g}` is not a share", hint="use a number between 0 and 1, such as 0.01 for 1%")
    batches = parse_batches(global_batch) if isinstance(global_batch, str) else tuple(global_batch)
    problem = dataclasses.replace(of := over(_problem(job), batches), limits=dataclasses.replace(of.limits, trials=None, wall_time_s=None))
    problem = with_limits(problem, trials=trials, wall_time_s=wall_time_s, max_gpu_hours=max_gpu_hours)
    setup = Setup.of(problem, None, alone=resume is None)
    problem, candidates, folder = setup.problem, setup.candidates, Path(table)
    facts = _facts(problem, "profile", resume, designer="complete" if exhaustive else "active", seed=seed)
    again = resume(folder) if resume else ()
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=callback, again=again, option="--table")
    profiler = make_profiler(problem, candidates, exhaustive=exhaustive, seed=seed, bound=loss)
    with open_session(setup, options, profiler) as executor:
        keeper = Keeper(executor, candidates, profiler, bound=loss, command=facts["command"].strip("`"), simulated=setup.runner.in_process)
        found, ended = measure(executor, candidates, profiler, keeper)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return ProfileResult(folder=folder, ended=ended, table=found, exhaustive_s=seconds_of_all(profiler))


def verify(
    study: str | Path,
    *,
    rounds: int | None = None,
    margin: float | None = None,
    max_gpu_hours: float | None = None,
    settings: Sequence[str] = (),
    callback: "Callback | None" = None,
) -> "VerifyResult":
    """Measure the winner of a finished study and its reference again, as after an upgrade, and compare them with the study.

    Args:
        study: Folder of the study, which may have been measured in another environment.
        rounds: Trials of each configuration, which take turns. None: the repeats of the study.
        margin: Share of the throughput up to which a change is none. None: 0.05.
        max_gpu_hours: Hours of all devices together that the verification may take. None: those of the whole study.
        settings: Changes of the study's limits or launcher, such as `limits.trial_time=5 min`.
        callback: Watches the session.

    Raises:
        InputError: the study has no winner, is in use, or an argument is wrong.
        EnvironmentLackingError: the program, a package or a device is missing.
        KeyboardInterrupt: the user stopped the verification; the same call continues it within a day.
    """
    from oppa.tuning.verify.run import run_verification

    planned = plan_verification(study, rounds=rounds, margin=margin, max_gpu_hours=max_gpu_hours, settings=settings)
    return run_verification(planned, callback)


def plan_verification(
    study: str | Path,
    *,
    rounds: int | None = None,
    margin: float | None = None,
    max_gpu_hours: float | None = None,
    settings: Sequence[str] = (),
) -> "VerifyPlan":
    """Return the plan of a verification with the arguments of `verify`, and raise its errors; start nothing, and make no folder."""
    from oppa.problem.study_settings import with_changes
    from oppa.report.record import provenance
    from oppa.tuning.session import Setup, with_limits
    from oppa.tuning.verify.finished import FinishedStudy
    from oppa.tuning.verify.plan import VerifyPlan

    finished = FinishedStudy.read(Path(study))
    problem = with_limits(with_changes(finished.problem, settings), max_gpu_hours=max_gpu_hours)
    setup = Setup.of(problem, None, alone=True)
    return VerifyPlan.of(finished, setup, rounds=rounds, margin=margin, facts=provenance(setup.problem.software))


def predict(job: str | Path | Problem) -> "PredictResult":
    """Rank the configurations of a job by the prior alone, without a trial.

    Args:
        job: A job file, or a problem.

    Raises:
        InputError: the job is wrong.
    """
    from oppa.cost import prediction
    from oppa.cost.beliefs import beliefs_of_job
    from oppa.cost.facts import workload_of
    from oppa.cost.ranking import PredictResult
    from oppa.training.tracing.trace import traced

    problem = traced(_problem(job))
    candidates = problem.candidates()
    predicted = prediction.predict(workload_of(problem, candidates), *beliefs_of_job(problem))
    ranked = predicted.sort_values(["fits", "predicted_step_time_s"], ascending=[False, True], kind="stable")
    return PredictResult(problem=problem, candidates=candidates, frame=ranked)


def train(
    job: str | Path | Problem,
    configuration: "str | Configuration" = "",
    *,
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    command: Sequence[str] = (),
    table: str | Path | None = None,
    policy: str = "",
    weights: str | Path | None = None,
    eval_runs: Sequence[str | Path] = (),
    control: str = "",
    callback: "TrainCallback | None" = None,
    tell: Callable[[str], None] = lambda _: None,
) -> "TrainResult":
    """Train a job to its end; restart ranks that die from the newest checkpoint.

    Args:
        job: A job file, the folder of a study, whose winner is trained, or a problem.
        configuration: A configuration, its id, some values such as `dp=2,micro_batch=4`, or a JSON file. Empty: the study's winner, the
            job's baseline, the table's fastest, or the default.
        run: Folder of the run: an existing one resumes from its newest checkpoint. None: a new one below `runs/`.
        settings: Changes of the job's keys, such as `train.samples=6400`.
        command: Launch line of the user's own trainer, which opens its run; it replaces that of the file's `[command]`.
        table: Folder of the table from which a policy chooses; its copy in the run's folder is refined by step times.
        policy: Name of the policy, with its settings. Empty: batch size and layout stay fixed.
        weights: File of a learned policy.
        eval_runs: Folders of recorded runs that evaluate a learned policy.
        control: A running control service, `JOB@127.0.0.1:PORT`. Empty: the run starts one if it has a policy.
        callback: Watches the run.
        tell: Called with the result of a learned policy's evaluation.

    Raises:
        InputError: the job, the run or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the run before its first step. Later, Ctrl-C saves a checkpoint and returns.
    """
    from oppa.control.policy_choice import PolicyChoice
    from oppa.control.service.address import ServiceAddress
    from oppa.control.training_session import supervised, train_options
    from oppa.table import Table
    from oppa.tuning.resolve_configuration import resolve_with_table

    profiled, source = Table.read(Path(table)) if table else None, job if isinstance(job, Problem) else Path(job)
    named = configuration if isinstance(configuration, str) else ""
    if command:
        if isinstance(source, Problem) or source.is_dir():
            raise InputError(f"`{shlex.join(command)}` needs a job file", hint="name the job file, or remove the launch line")
        source, settings = load_job(source, settings=settings, command=command), ()
    problem, usual = resolve_with_table(source, named, profiled, changes=settings)
    asked = usual if named or (isinstance(source, Path) and source.is_dir()) else None
    if not isinstance(configuration, str):
        asked = usual = configuration
    problem, options = train_options(
        problem,
        asked=asked,
        usual=usual,
        table=profiled,
        schedules=Path(table) if table else None,
        control=ServiceAddress.parse(control) if control else None,
        choice=PolicyChoice(text=policy, weights=Path(weights) if weights else None, eval_runs=[*map(Path, eval_runs)]),
        tell=tell,
    )
    return supervised(problem, options, _run_folder(problem, options, run), callback)


def _run_folder(problem: Problem, options: "TrainOptions", run: str | Path | None) -> Path:
    """Return the folder of a run; raises InputError before there is one if a new run cannot begin."""
    from oppa.control.training_session import first_configuration
    from oppa.tuning.session import new_folder

    if run is None or not Path(run).exists():
        first_configuration(problem, options)
    return Path(run) if run is not None else new_folder(problem.name, among="runs")


def _problem(job: str | Path | Problem) -> Problem:
    return job if isinstance(job, Problem) else load_job(job)


def _transferred(problem: Problem, own: Path | None = None) -> "TransferredPrior | None":
    """Return what the studies under `[designer] transfer` learned, without the job's `own`; None if the job names no study."""
    if not problem.search_options.transfer:
        return None
    from oppa.tuning.transfer import transferred

    return transferred(problem, own=own)


def _facts(problem: Problem, name: str, resume: Resume | None, *, designer: str, seed: int) -> dict[str, str]:
    """Return the facts that explain a session's trials later: command, versions, hardware, designer and seed."""
    from oppa.report.record import provenance

    words = ["python", f"oppa.{name}"] if resume is None else [Path(sys.argv[0]).name, *sys.argv[1:]]
    command = {"command": f"`{shlex.join(redacted(words))}`"}
    return {**provenance(problem.software), **command, "designer": designer, "seed": str(seed)}
