"""`oppa plan`: make a batch schedule, the batch size and layout of each stage, for training without a live controller."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.control.plan import RunPlan

TABLE = "Folder of the table from which the policy chooses."
NOISE = "Folder of a run of `oppa train`, which gives the noise scale."
POLICY = "Policy that chooses batch size and layout: `goodput`, `critical-batch`, `norm-test` or `stagewise`."
SAMPLES = "Number of samples at which training ends; the run's own by default."
COST = "Seconds that a change of layout takes; by default the median restart of the run, or a minute if it has none."
TO = "Print the arguments of this framework instead: `megatron`."


def plan(
    table: Annotated[Path, typer.Option(metavar="FOLDER", help=TABLE)],
    noise: Annotated[Path, typer.Option(metavar="RUN", help=NOISE)],
    policy: Annotated[str, typer.Option(metavar="NAME", help=POLICY)] = "goodput",
    samples: Annotated[int | None, typer.Option(min=1, help=SAMPLES)] = None,
    cost: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help=COST)] = None,
    to: Annotated[str, typer.Option(metavar="FRAMEWORK", help=TO)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the stages as JSON on stdout.")] = False,
) -> None:
    """Plan the batch size and layout of each stage of a training run, by number of tokens.

    The batch schedule contains the policy's decisions for the noise scale of an earlier run.

    Exit codes: 0 written, 2 wrong input.
    """
    from oppa.cli.views import style
    from oppa.control.plan import launches, plan_of_run
    from oppa.control.registry import needs_table, policy_of
    from oppa.table.table import Table
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import RunSpec
    from oppa.tuning.formats import megatron_schedule

    if to not in ("", "megatron"):
        raise InputError(f"`--to {to}` is unknown", hint="use `megatron`, or remove --to")
    choose = policy_of(policy)
    if not needs_table(policy):
        hint = "use `goodput`, `critical-batch`, `norm-test` or `stagewise`"
        raise InputError(f"`--policy {policy}` has no stages to plan: it only shares each batch among the workers of a run", hint=hint)
    run, profiled = RunSpec.read(noise), Table.read(table)
    profiled.origin.require_model_of(run.problem)
    lines = ledger.standing(ledger.read(noise))
    found = plan_of_run(run, lines, profiled, choose, samples=samples, reconfiguration_s=cost)
    seq_len = run.problem.model.seq_len
    if as_json:
        style.print_json([{"tokens": stage.samples * seq_len, **stage.to_dict()} for stage in found.stages])
    elif to:
        typer.echo(megatron_schedule.arguments(run.problem, launches(found.stages)))
    else:
        _print(found, seq_len)


def _print(found: "RunPlan", seq_len: int) -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.units import format_count, format_seconds

    table = style.table(["tokens", "batch", "configuration", "reason"])
    for stage in found.stages:
        configuration = stage.configuration
        table.add_row(format_count(stage.samples * seq_len), str(configuration.global_batch), configuration.id, escape(stage.reason))
    style.out().print(table)
    note = f"A change of layout counts as {format_seconds(found.reconfiguration_s)} ({found.source})."
    style.out().print(note, style="dim")
