"""`oppa train JOB`: train a job to its end, and recover from failures."""

import contextlib
import dataclasses
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.cli.views.search_view import Interruption
    from oppa.control.decision import Policy
    from oppa.control.throughput_index import ThroughputIndex
    from oppa.launchers.provider import Backend
    from oppa.launchers.resolve import LaunchRequest
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem
    from oppa.table.table import Table
    from oppa.training.run.ledger import Line
    from oppa.training.run.run_folder import RunSpec
    from oppa.training.run.supervision import Outcome
    from oppa.trials.runner import Runner

SOURCE = "The job file; or the folder of a study, whose winner is trained."
SETTING = (
    "The configuration: an id, `dp=2,micro_batch=4`, the rest at its defaults, or a JSON file. With --table, `global_batch=16` means the "
    "fastest row of that batch. "
    "A run that goes on changes to it."
)
RUN = "The run's folder: an existing one goes on where it was saved. A new one below runs/ unless given."
SAMPLES = "Where training ends, instead of the job file's [train]; one epoch where neither says."
SEED = "Of weights and of the order of samples, instead of the job file's."
HOSTS = "Instead of the job file's [cluster]: a run goes on where there are more, or fewer."
TABLE = "The folder of a table: a new run begins with its fastest configuration, and its step times refine a copy in the run's folder."
POLICY = (
    "Who chooses batch sizes and layout while it trains, from --table: `goodput`, `critical-batch`, `norm-test`, `stagewise`, `static`; "
    "without one `proportional`, and with --weights `rl` and `explore`. Settings stand behind the name, `norm-test,eta=0.3`."
)
CONTROL = (
    "A control service that runs already, `JOB@127.0.0.1:PORT`, instead of one of its own: policy and table are its. "
    "The job's token is in OPPA_CONTROL_TOKEN."
)
TOKEN = "OPPA_CONTROL_TOKEN"
WEIGHTS = "What `oppa train-policy` has written, for `--policy rl`; or for `--policy explore`, which draws its steps by lot."
EVAL_RUN = "A run of this job under `--policy explore`, by which `rl` is checked before it may act. Repeat it for more."
BASELINE_POLICY = "What `rl` must not be worse than: `static` or `proportional`."
LAUNCHER = "Where it runs: `local`, `slurm`, or `auto`, as `oppa tune` has it."
SBATCH = "A word for the sbatch with which `--launcher slurm` asks for hosts. Repeat it for more."


def train(
    source: Annotated[Path, typer.Argument(metavar="JOB|STUDY", help=SOURCE, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="[SETTING]", help=SETTING, show_default=False)] = "",
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help=RUN)] = None,
    samples: Annotated[int | None, typer.Option(min=1, help=SAMPLES)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=SEED)] = None,
    hosts: Annotated[int | None, typer.Option(min=1, help=HOSTS)] = None,
    table: Annotated[Path | None, typer.Option(metavar="FOLDER", help=TABLE)] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help=POLICY)] = "",
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help=WEIGHTS)] = None,
    eval_run: Annotated[list[Path] | None, typer.Option(metavar="RUN", help=EVAL_RUN)] = None,
    baseline_policy: Annotated[str, typer.Option(metavar="NAME", help=BASELINE_POLICY)] = "static",
    control: Annotated[str, typer.Option(metavar="JOB@ADDRESS", help=CONTROL)] = "",
    launcher: Annotated[str, typer.Option(metavar="NAME", help=LAUNCHER)] = "auto",
    sbatch: Annotated[list[str] | None, typer.Option(metavar="WORD", help=SBATCH)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print how it ended as JSON on stdout.")] = False,
) -> None:
    """Train a job, and keep training it: ranks that die are started again from the newest checkpoint.

    Ctrl-C saves it and stops, a second one stops at once; the same command with --run goes on. Exit codes: 0 trained to its end,
    1 training failed, 2 wrong input, 3 environment lacking, 130 stopped.
    """
    from oppa.cli.policy_options import policy_maker
    from oppa.cli.resolve_configuration import resolve_with_table
    from oppa.launchers.resolve import LaunchRequest
    from oppa.table.table import Table
    from oppa.trials.runner import load_runner

    profiled = Table.read(table) if table else None
    problem, configuration = resolve_with_table(source, setting, profiled, hosts=hosts)
    runner = load_runner(problem.runner).for_runs()
    problem = _with_options(problem, samples, seed)
    if profiled:
        profiled.require_for(problem)
    if weights and not policy:
        raise InputError(f"`--weights {weights}` without a policy", hint="add `--policy rl`")
    make = policy_maker(policy, weights, eval_run or [], baseline_policy, problem) if policy else None
    if make:
        problem = _measured_for(problem, _policy(policy, make, profiled))
    if control and policy:
        raise InputError(f"`--policy {policy}` beside `--control {control}`", hint="that service has a policy: leave one of them out")
    there = _there(control)
    request = LaunchRequest.of(problem.launcher, launcher=launcher, parallel=1, sbatch=sbatch or ()).resolve(problem.cluster)
    asked = configuration if setting or source.is_dir() else None
    result, code = _supervised(
        problem,
        TrainOptions(
            runner=runner,
            asked=asked,
            usual=configuration,
            table=profiled,
            orders=table,
            request=request,
            policy=policy,
            make=make,
            control=there,
        ),
        run,
    )
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    raise typer.Exit(code)


def _with_options(problem: "Problem", samples: int | None, seed: int | None) -> "Problem":
    """Return the problem with the options' samples and seed; raises InputError if training would end within its warm-up."""
    if samples is not None:
        if samples < problem.run_options.warmup_samples:
            message = f"`--samples {samples}` ends within the warm-up of {problem.run_options.warmup_samples} samples"
            raise InputError(message, hint="train longer, or set a shorter `warmup` in [train]")
        problem = dataclasses.replace(problem, run_options=dataclasses.replace(problem.run_options, samples=samples))
    if seed is not None:
        problem = dataclasses.replace(problem, training=dataclasses.replace(problem.training, seed=seed))
    return problem


def train_under(
    problem: "Problem", configuration: "Configuration", policy: str, make: "Callable[[ThroughputIndex | None], Policy]", run: Path
) -> int:
    """Train a job under a policy that needs no table, in a folder of its own, and return the exit code of `oppa train`.

    Args:
        policy: Name of the policy.
        make: Function that makes the policy.
    """
    from oppa.launchers.resolve import LaunchRequest
    from oppa.trials.runner import load_runner

    problem = _measured_for(problem, make(None))
    options = TrainOptions(
        runner=load_runner(problem.runner).for_runs(),
        asked=configuration,
        usual=configuration,
        table=None,
        request=LaunchRequest.of(problem.launcher, parallel=1).resolve(problem.cluster),
        policy=policy,
        make=make,
        control=None,
    )
    return _supervised(problem, options, run)[1]


def _measured_for(problem: "Problem", policy: "Policy") -> "Problem":
    """Return the problem with a recipe that measures the statistics which a policy needs."""
    run_options = problem.run_options
    if policy.interval is not None:
        run_options = dataclasses.replace(run_options, statistics=policy.measures, statistics_every=policy.interval)
    if policy.window is not None:
        run_options = dataclasses.replace(run_options, workers_every=policy.window)
    return dataclasses.replace(problem, run_options=run_options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The user's options for training a job."""

    runner: "Runner"
    asked: "Configuration | None"
    """The configuration that the user asked for, if any."""
    usual: "Configuration | None"
    """The configuration of a new run if the user asked for none. None: the table's fastest, or the default of the space."""
    table: "Table | None"
    request: "LaunchRequest"
    policy: str
    """Name of the policy; empty: none."""
    make: "Callable[[ThroughputIndex | None], Policy] | None"
    """Function that makes the policy; None without one."""
    control: "_There | None"
    """A control service that already runs, if the user named one."""
    orders: Path | None = None
    """Folder of the table, which may also contain pipeline orders."""


@dataclasses.dataclass(frozen=True, slots=True)
class _There:
    """A control service on this machine, and the job name and token with which the run connects to it."""

    job: str
    port: int
    token: str


def _there(text: str) -> _There | None:
    """Return the service that `--control` names, or None if it is empty; raises InputError if it is malformed or the token is missing."""
    from oppa.launchers.network import LOOPBACK
    from oppa.protocol.messages import NAME

    if not text:
        return None
    match = re.fullmatch(rf"(?P<job>{NAME})@(?:{re.escape(LOOPBACK)}|localhost):(?P<port>[0-9]{{1,5}})", text)
    if match is None:
        hint = f"give the job's name and where the service listens, `my-job@{LOOPBACK}:8765`; from elsewhere through an SSH tunnel"
        raise InputError(f"`--control {text}`", hint=hint)
    if not (token := os.environ.get(TOKEN, "")):
        raise InputError(f"`--control {text}` without a token", hint=f"{TOKEN}=`oppa control --table T --token {match['job']}`")
    return _There(match["job"], int(match["port"]), token)


def _policy(name: str, make: "Callable[[ThroughputIndex | None], Policy]", table: "Table | None") -> "Policy":
    """Return the policy; raises InputError if it needs a table and there is none."""
    from oppa.control.registry import needs_table
    from oppa.control.throughput_index import ThroughputIndex

    if table is None and needs_table(name):
        raise InputError(f"`--policy {name}` needs a table to choose from", hint="give --table; `oppa profile` makes one")
    return make(ThroughputIndex(table) if table else None)


def _supervised(problem: "Problem", options: TrainOptions, named: Path | None) -> tuple[dict[str, Any], int]:
    """Train until the run ends or is stopped; return the result and the exit code."""
    from oppa.cli.trial_session import again_with, going_on, say_how_to_go_on
    from oppa.cli.views.run_view import make_run_view, print_outcome, print_run, print_worth
    from oppa.cli.views.search_view import Interruption
    from oppa.cli.views.summary import new_folder
    from oppa.pipeline import stored_schedules
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import PROFILED, STOP, held
    from oppa.training.run.supervision import Ending, supervise
    from oppa.trials.orphans import sweep

    folder, interruption, begun_s = named or new_folder(problem.name, among="runs"), Interruption(), time.monotonic()
    with held(folder), interruption.caught():
        (folder / STOP).unlink(missing_ok=True)
        run = _run(folder, problem, options)
        if options.table:
            options.table.write(folder / PROFILED)
        if options.orders:
            stored_schedules.copy(options.orders, folder)
        sweep(run.uuid)
        print_run(run, folder)
        again, grace_s = again_with("--run", folder), problem.limits.grace_s
        with (
            going_on(again),
            _engine(options.request, problem, folder, interruption) as engine,
            engine.launcher(options.runner, study=run.uuid, grace_s=grace_s) as ranks,
            _controlled(run, folder, options, engine) as account,
            make_run_view(run, folder, interruption) as watcher,
        ):
            outcome = supervise(ranks, folder, run, watcher)
        lines = ledger.standing(ledger.read(folder))
        print_outcome(folder, outcome, lines)
        if account:
            print_worth(account)
        result = {**_result(folder, outcome, lines, time.monotonic() - begun_s), "worth": account or None}
        if options.table:
            _refine(options.table, folder, lines)
        if outcome.ending in (Ending.STOPPED, Ending.REVOKED):
            say_how_to_go_on(again)
    return result, {Ending.FINISHED: 0, Ending.FAILED: 1, Ending.STOPPED: 130, Ending.REVOKED: 3}[outcome.ending]


@contextlib.contextmanager
def _controlled(run: "RunSpec", folder: Path, options: TrainOptions, engine: "Backend") -> Iterator[dict[str, Any]]:
    """Run a control service if a policy is given, or use the one that is named.

    The yielded account is empty until the end. It then holds what the decisions of a policy were worth.
    """
    from oppa.control.service import discovery

    (folder / discovery.FILE).unlink(missing_ok=True)  # left by a supervisor that was killed
    account = dict[str, Any]()
    if options.control:
        with _told(options.control, run, folder, engine):
            yield account
        return
    if not options.make:
        yield account
        return
    from oppa.cli.views import style
    from oppa.control.service.job import controllers
    from oppa.control.service.server import Service
    from oppa.control.service.thread import serve_in_thread
    from oppa.launchers.network import LOOPBACK
    from oppa.training.run import ledger

    begun = time.time()
    service = Service(folder / "control", controllers(options.table, options.make))
    try:
        with serve_in_thread(service) as port, _told(_There(run.uuid, port, service.tokens.of_job(run.uuid)), run, folder, engine):
            style.err().print(f"live    http://{LOOPBACK}:{port}/#token={service.tokens.of_watcher()}", markup=False, soft_wrap=True)
            yield account
        if (job := service.jobs.get(run.uuid)) is not None:
            account.update(job.controller.to_dict())
        if not service.taken and any(each["event"] == ledger.STEP and each["time"] >= begun for each in ledger.read(folder)):
            style.err().print("warning: the ranks never reached the control service; nothing was decided", markup=False, soft_wrap=True)
    finally:
        service.close()


@contextlib.contextmanager
def _told(there: _There, run: "RunSpec", folder: Path, engine: "Backend") -> Iterator[None]:
    """Let the ranks find and reach a service on this machine from their hosts, inside the context."""
    from oppa.control.service import discovery
    from oppa.launchers.network import LOOPBACK

    with (
        engine.reached(there.port, grace_s=run.problem.limits.grace_s, log=folder / "tunnel.log") as port,
        discovery.advertise(folder, address=f"{LOOPBACK}:{there.port}", through=f"{LOOPBACK}:{port}", job=there.job, token=there.token),
    ):
        yield


def _engine(
    request: "LaunchRequest", problem: "Problem", folder: Path, interruption: "Interruption"
) -> "contextlib.AbstractContextManager[Backend]":
    from oppa.launchers.resolve import open_backend

    grace_s, name = problem.limits.grace_s, problem.name
    return open_backend(request, problem.cluster, folder, name=name, grace_s=grace_s, on_tick=interruption.check)


def _run(folder: Path, problem: "Problem", options: TrainOptions) -> "RunSpec":
    """Return the run in a folder, new or continued. Recipe, limits and cluster are the present ones; model and data must be the run's own.

    Raises:
        RunError: the folder holds a run of another model, or of other data.
    """
    from oppa.training.run.run_folder import SPEC, RunSpec

    if not (folder / SPEC).exists():
        run = RunSpec(
            uuid=str(uuid.uuid4()), problem=problem, configuration=options.asked or options.usual or _fastest(problem, options.table)
        )
    else:
        run = RunSpec.read(folder)
        run.require_continued_by(problem, folder)
        same_size = run.configuration.devices == problem.cluster.devices
        present = run.configuration if same_size else _default(problem)
        run = dataclasses.replace(run, problem=problem, configuration=options.asked or present)
    reference = problem.run_options.reference_batch or problem.global_batch
    run_options = dataclasses.replace(problem.run_options, reference_batch=reference)
    run = dataclasses.replace(run, problem=dataclasses.replace(problem, run_options=run_options), policy=options.policy)
    run.write(folder)
    return run


def _refine(table: "Table", folder: Path, lines: "Sequence[Line]") -> None:
    """Refine a copy of the table by this run's step times, write it into the run's folder, and print the changes."""
    from oppa.cli.views.run_view import print_refined
    from oppa.table.refinement import refined
    from oppa.training.run.step_times import observations

    seen = observations(lines)
    if seen:
        better = refined(table, seen)
        better.write(folder / "table")
        print_refined(table, better, seen, folder / "table")


def _fastest(problem: "Problem", table: "Table | None") -> "Configuration":
    """Return the configuration that the table measured as the fastest at the job's global batch, else the space's default."""
    rows = [row for row in table.rows if row.source == "measured"] if table else []
    rows = [row for row in rows if row.configuration.global_batch == problem.global_batch]
    return max(rows, key=lambda row: row.steps_per_s).configuration if rows else _default(problem)


def _default(problem: "Problem") -> "Configuration":
    """Return the space's default configuration."""
    candidates = problem.candidates()
    return candidates.configuration(int(candidates.default_order()[0]))


def _result(folder: Path, outcome: "Outcome", lines: "Sequence[Line]", seconds: float) -> dict[str, Any]:
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import checkpoints

    steps = [line for line in lines if line["event"] == ledger.STEP]
    last = steps[-1] if steps else {}
    held_out = [line["loss"] for line in lines if line["event"] == ledger.VALIDATED]
    return {
        "run": str(folder),
        "ending": outcome.ending.value,
        "cause": outcome.last.cause,
        "attempts": outcome.attempts,
        "seconds": seconds,
        "steps": len(steps),
        "samples": ledger.require_whole(lines),
        **{name: last.get(name) for name in ("configuration", "global_batch", "micro_batch", "loss", "noise_scale", "health")},
        "validation_loss": held_out[-1] if held_out else None,
        "checkpoint": next(map(str, checkpoints(folder)), None),
    }
