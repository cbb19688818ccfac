"""Turn the user's choices for a run into checked options."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oppa.control.decision import Policy
from oppa.control.own_trainer.bounds import require_bounds
from oppa.control.policy_choice import MakePolicy, PolicyChoice
from oppa.control.registry import needs_table
from oppa.control.service.address import ServiceAddress
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.launchers.resolve import LaunchRequest
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.table.table import Table
from oppa.trials.runner import Runner, load_runner, require_program


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Holds the user's choices for training a job."""

    runner: Runner
    asked: Configuration | None
    """The configuration that the user requested, if any."""
    usual: Configuration | None
    """The configuration of a new run if the user requested none. None: the table's fastest, or the default of the space."""
    table: Table | None = None
    request: LaunchRequest
    policy: str = ""
    """Name of the policy, with its settings; empty: none."""
    make: MakePolicy | None = None
    """Function that makes the policy; None without one."""
    splits: bool = False
    """True if the policy gives each data-parallel worker a batch of its own."""
    control: ServiceAddress | None = None
    """A running control service, if the user named one."""
    schedules: Path | None = None
    """Folder of the table, which may also contain pipeline schedules."""


def train_options(
    problem: Problem, *, choice: PolicyChoice, control: ServiceAddress | None, table: Table | None, tell: Callable[[str], None], **rest: Any
) -> tuple[Problem, TrainOptions]:
    """Return the problem with the measurements that its policy needs, and the options of its training.

    Args:
        choice: The user's choice of a policy.
        control: A running control service, if the user named one.
        table: The table from which a policy chooses.
        tell: Called with the result of a learned policy's evaluation.
        rest: Further fields of the options.

    Raises:
        InputError: the policy or the table does not fit the job, or the runner does not train.
        EnvironmentLackingError: hosts or devices are missing.
    """
    runner = load_runner(problem.runner).for_runs()
    if problem.command is not None:
        require_program(problem.command, problem.space)
    require_bounds(problem.run_options, own=problem.command is not None)
    if table:
        table.require_for(problem)
    policy, make = choice.resolve(problem, tell)
    if make is not None and table is None and needs_table(policy):
        raise InputError(f"`--policy {policy}` needs a table to choose from", hint="give --table; make a table with `oppa profile`")
    splits = False
    if make is not None:
        made = make(ThroughputIndex(table) if table else None)
        splits = made.window is not None
        if problem.command is not None and splits:
            hint = "use `goodput`, `critical-batch`, `norm-test`, `stagewise` or `static`"
            raise InputError(f"`--policy {policy}` needs summaries of workers, which your own trainer does not report", hint=hint)
        problem = measured_for(problem, made)
    if control and policy:
        raise InputError(f"`--policy {policy}` and `--control` exclude each other", hint="remove one of them: the service has a policy")
    request = LaunchRequest.of(problem.launcher, parallel=1).resolve(problem.cluster)
    return problem, TrainOptions(
        runner=runner, table=table, request=request, policy=policy, make=make, splits=splits, control=control, **rest
    )


def measured_for(problem: Problem, policy: Policy) -> Problem:
    """Return the problem with run options that measure the statistics which a policy needs, and with its scaling if the job states none."""
    run_options = problem.run_options
    if policy.scaling is not None and run_options.usual_scaling:
        run_options = dataclasses.replace(run_options, scaling=policy.scaling)
    if policy.interval is not None:
        run_options = dataclasses.replace(run_options, statistics=policy.measures, statistics_every=policy.interval)
    if policy.window is not None:
        run_options = dataclasses.replace(run_options, workers_every=policy.window)
    return dataclasses.replace(problem, run_options=run_options)
