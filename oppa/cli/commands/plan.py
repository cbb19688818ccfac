"""`oppa plan`: make a timeline of batch sizes and layouts, for training without a live controller."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.control.plan import NoiseSeen, PlanStage
    from oppa.problem.problem import Problem
    from oppa.training.run.ledger import Line

TABLE = "Folder of the table from which the policy chooses."
NOISE = "Folder of a run of `oppa train`, which gives the noise scale."
POLICY = "Policy that chooses batch size and layout: `goodput`, `critical-batch`, `norm-test` or `stagewise`."
SAMPLES = "Number of samples at which training ends; the run's own by default."
COST = "Seconds that a change of layout takes; by default the median restart of the run, or a minute if it has none."
MINUTE_S = 60.0
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

    The plan contains the policy's decisions for the noise scale of an earlier run.

    Exit codes: 0 written, 2 wrong input.
    """
    from oppa.control.plan import fastest_at, restart_s
    from oppa.control.plan import plan as planned
    from oppa.control.registry import policy_of
    from oppa.control.throughput_index import ThroughputIndex
    from oppa.table.table import Table
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import RunSpec
    from oppa.units import format_seconds

    if to not in ("", "megatron"):
        raise InputError(f"`--to {to}` is unknown", hint="use `megatron`, or remove --to")
    run, profiled = RunSpec.read(noise), Table.read(table)
    profiled.origin.require_model_of(run.problem)
    every = ledger.standing(ledger.read(noise))
    lines = [line for line in every if line["event"] == ledger.STEP]
    cost_s, source = next(
        (seconds, source)
        for seconds, source in ((cost, "as stated"), (restart_s(every), "the median restart of the run"), (MINUTE_S, "assumed"))
        if seconds is not None
    )
    begin = fastest_at(profiled, run.configuration.global_batch).configuration
    options = run.problem.run_options
    total = samples or options.samples or (lines[-1]["samples"][1] if lines else 0)
    throughputs = ThroughputIndex(profiled).scaled(options.scaling)
    stages = planned(
        policy_of(policy)(throughputs),
        profiled,
        _seen(lines),
        begin=begin,
        total=total,
        warmup=options.warmup_samples,
        reconfiguration_s=cost_s,
    )
    seq_len = run.problem.model.seq_len
    if as_json:
        typer.echo(json.dumps([{"tokens": stage.samples * seq_len, **stage.to_dict()} for stage in stages], indent=1))
    elif to:
        typer.echo(_megatron(run.problem, stages))
    else:
        _print(stages, seq_len, f"A change of layout counts as {format_seconds(cost_s)} ({source}).")


def _seen(lines: "Sequence[Line]") -> "list[NoiseSeen]":
    from oppa.control.plan import NoiseSeen

    healthy = (line for line in lines if line["health"] == "healthy" and line["noise_scale"] is not None)
    return [NoiseSeen(samples=line["samples"][1], noise_scale=line["noise_scale"]) for line in healthy]


def _print(stages: "Sequence[PlanStage]", seq_len: int, note: str) -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.units import format_count

    table = style.table(["tokens", "batch", "configuration", "reason"])
    for stage in stages:
        configuration = stage.configuration
        table.add_row(format_count(stage.samples * seq_len), str(configuration.global_batch), configuration.id, escape(stage.reason))
    style.out().print(table)
    style.out().print(note, style="dim")


def _megatron(problem: "Problem", stages: "Sequence[PlanStage]") -> str:
    """Return a paragraph of arguments for each launch; layout and micro-batch are fixed within a launch.

    Raises:
        InputError: Megatron-LM cannot express a configuration.
    """
    from oppa.control.plan import launches, megatron_schedule
    from oppa.tuning.formats import megatron

    texts, seq_len = [], problem.model.seq_len
    for launch in launches(stages):
        configuration = launch[0].configuration
        megatron.check(problem, configuration)
        options = [option for option in megatron.parallel_options(problem, configuration) if not option.startswith("--global-batch-size")]
        options.append(f'--step-batch-size-schedule "{megatron_schedule(launch, seq_len)}"')
        head = f"# from token {launch[0].samples * seq_len}; data parallel size {configuration.dp}"
        texts.append("\n".join([head, *(f"{option} \\" for option in options)]).removesuffix(" \\"))
    return "\n\n".join(texts)
