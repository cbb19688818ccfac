"""The Python interface: what the commands do, as functions that print nothing.

    import oppa
    result = oppa.tune("job.toml", trials=20)
    print(result.best.configuration, result.best.steps_per_s)

Trials run in processes of their own, so a script needs no `__main__` guard, and may be a notebook or standard input. Ctrl-C raises
KeyboardInterrupt once the running trial has ended; the same call with `study=` continues the search.
"""

import dataclasses
import functools
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.errors import InputError
from oppa.problem import job as job_file
from oppa.problem.problem import Problem
from oppa.redaction import redacted
from oppa.tuning import designers

if TYPE_CHECKING:
    import pandas as pd

    from oppa.control.training_session import Callback as TrainCallback
    from oppa.control.training_session import TrainOptions, TrainResult
    from oppa.cost.coefficients import Belief
    from oppa.problem.candidates import Candidates
    from oppa.problem.configuration import Configuration
    from oppa.simulator.benchmark_task import BenchmarkTask
    from oppa.tuning.outcomes import ProfileResult, TuneResult
    from oppa.tuning.plan import TunePlan
    from oppa.tuning.session import Callback, Setup

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


def tune(
    job: "str | Path | Problem | BenchmarkTask",
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
        job: A job file, a problem, or a task whose trials are simulated.
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
    beliefs = _transferred(problem)
    expected = expectation(setup, designer, beliefs) if callback is not None and is_expected(problem, designer) else None
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=callback, again=again, expected=expected)
    with open_session(setup, options) as executor:
        made = designers.make_designer(designer, problem, candidates, seed=seed, beliefs=beliefs)
        rule = make_rule(problem.search_options.stopping or designers.STOPPING.get(designer, "never"), problem.limits)
        reserve = functools.partial(verification_s, candidates=candidates, designer=made, problem=problem)
        ended = search(executor, candidates, made, rule, reserve=reserve)
        found = find_winner(executor, candidates, made)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return TuneResult.of(executor, found, ended)


def plan(
    job: "str | Path | Problem | BenchmarkTask",
    *,
    trials: int | None = None,
    max_gpu_hours: float | None = None,
    designer: str = designers.DEFAULT,
    seed: int = 0,
    launcher: str | None = None,
) -> "TunePlan":
    """Return the plan of a search with these arguments; start nothing, and make no folder.

    Raises:
        InputError: the job or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
    """
    from oppa.tuning.plan import TunePlan, expectation

    setup = _setup(job, designer, launcher, alone=True, trials=trials, max_gpu_hours=max_gpu_hours)
    problem, candidates, beliefs = setup.problem, setup.candidates, _transferred(setup.problem)
    made = designers.make_designer(designer, problem, candidates, seed=seed, beliefs=beliefs)
    suggested = made.suggest(set())
    first = problem.baseline or (None if suggested is None else candidates.configuration(suggested))
    launched = "simulated" if setup.runner.in_process else setup.request.launcher
    expected = expectation(setup, designer, beliefs)
    return TunePlan(problem=problem, candidates=candidates, launcher=launched, first=first, expected=expected)


def _setup(
    job: "str | Path | Problem | BenchmarkTask", designer: str, launcher: str | None, *, alone: bool, **limits: float | None
) -> "Setup":
    """Return the setup of a search, with those limits changed that are not None.

    Raises:
        InputError: the designer is unknown, a limit is wrong, or what `Setup.of` raises.
    """
    from oppa.tuning.session import Setup

    designers.require_designer(designer)
    asked, simulator = (job, None) if isinstance(job, (str, Path, Problem)) else (job.problem, job.simulator)
    problem = _with_limits(_problem(asked), **{name: value for name, value in limits.items() if value is not None})
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
    from oppa.tuning.session import SessionOptions, Setup, open_session

    if not 0 < loss < 1:
        raise InputError(f"`loss = {loss:g}` is not a share", hint="use a number between 0 and 1, such as 0.01 for 1%")
    batches = parse_batches(global_batch) if isinstance(global_batch, str) else tuple(global_batch)
    hours = {} if max_gpu_hours is None else {"max_gpu_hours": max_gpu_hours}
    problem = _with_limits(over(_problem(job), batches), trials=trials, wall_time_s=wall_time_s, **hours)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictedConfiguration:
    """Holds a configuration and the prior's prediction for it."""

    configuration: "Configuration"
    step_time_s: float
    memory_bytes: int
    """Bytes on the fullest device."""
    fits: bool
    """True if these bytes fit into a device."""
    step_time_interval_s: tuple[float, float]
    """Ends of the interval that holds the step time with a probability of 90%."""
    memory_interval_bytes: tuple[int, int]
    """Ends of the same interval of the memory."""
    probability_fits: float

    @property
    def steps_per_s(self) -> float:
        """Return the predicted throughput, in steps per second."""
        return 1 / self.step_time_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictResult:
    """Ranks the configurations of a job by the prior: first those that fit, the fastest of them first."""

    problem: Problem
    candidates: "Candidates"
    frame: "pd.DataFrame"
    """A row per configuration, in this order; its index is the number of the candidate."""

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, rank: int) -> PredictedConfiguration:
        row = self.frame.iloc[rank]
        return PredictedConfiguration(
            configuration=self.candidates.configuration(int(self.frame.index[rank])),
            step_time_s=float(row["predicted_step_time_s"]),
            memory_bytes=int(row["predicted_memory_bytes"]),
            fits=bool(row["fits"]),
            step_time_interval_s=(float(row["predicted_step_time_low_s"]), float(row["predicted_step_time_high_s"])),
            memory_interval_bytes=(int(row["predicted_memory_low_bytes"]), int(row["predicted_memory_high_bytes"])),
            probability_fits=float(row["probability_fits"]),
        )


def predict(job: str | Path | Problem) -> PredictResult:
    """Rank the configurations of a job by the prior alone, without a trial.

    Args:
        job: A job file, or a problem.

    Raises:
        InputError: the job is wrong.
    """
    from oppa.cost import prediction
    from oppa.cost.beliefs import beliefs_of_job
    from oppa.cost.facts import workload_of
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


def _with_limits(problem: Problem, **changed: Any) -> Problem:
    """Return the problem with changed limits; raises InputError if one is not positive, or leaves no time for a trial to start."""
    from oppa.tuning.device_budget import require_one_start

    if (trials := changed.get("trials")) is not None and trials < 1:
        raise InputError(f"`trials = {trials}` is too small", hint="use at least 1")
    if (hours := changed.get("max_gpu_hours")) is not None and not 0 < hours < math.inf:
        raise InputError(f"`max_gpu_hours = {hours:g}` is not a positive number", hint="use more than 0, such as 100")
    limited = dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, **changed))
    require_one_start(limited)
    return limited


def _transferred(problem: Problem) -> "Mapping[str, Belief] | None":
    """Return the coefficients that the study under `[designer] transfer` fitted; None if the job names no study."""
    if problem.search_options.transfer is None:
        return None
    from oppa.tuning.transfer import beliefs_of

    return beliefs_of(Path(problem.search_options.transfer), problem)


def _facts(problem: Problem, name: str, resume: Resume | None, *, designer: str, seed: int) -> dict[str, str]:
    """Return the facts that explain a session's trials later: command, versions, hardware, designer and seed."""
    from oppa.report.record import provenance

    words = ["python", f"oppa.{name}"] if resume is None else [Path(sys.argv[0]).name, *sys.argv[1:]]
    command = {"command": f"`{shlex.join(redacted(words))}`"}
    return {**provenance(problem.software), **command, "designer": designer, "seed": str(seed)}
