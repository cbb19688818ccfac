"""`oppa cluster simulate` and `generate`: simulate elastic jobs on a shared cluster from a trace, and make such traces."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.cluster.comparison import PolicyRow, SharedCluster
    from oppa.cluster.elastic import Elasticity
    from oppa.cluster.job import TraceJob
    from oppa.cluster.result import Result

TRACE = "Trace of jobs: oppa's CSV, AcmeTrace's CSV, or Philly's JSON."
GPUS = "Number of GPUs of the cluster."
ELASTIC = "Share of elastic jobs among pretraining jobs on 32, 64 or 256 GPUs; with --table, on the size of the table's job."
POLICY = "Policies, separated by commas: `flextrain`, `greedy`, `elasticflow` or `none`."
TABLE = "Folder of a scale table of `oppa scale-table`, instead of predictions for FlexTrain's three models. Repeat it for more."
SET = "Change an option, as listed above: `scaling.max_scale=2`. Repeat it for more."
COUNTED = 32
"""Default of the smallest job, in GPUs, that counts as an arrival."""
DECISIONS = "Write every change of a job's size, with its reason, to this file: one line of JSON each."
LIKE = "Profile of the trace: `seren`."
OUT = "File of the trace."


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help=TRACE, show_default=False)],
    gpus: Annotated[int, typer.Option(min=1, help=GPUS)],
    elastic: Annotated[float, typer.Option(metavar="SHARE", help=ELASTIC)] = 0.2,
    policy: Annotated[str, typer.Option(metavar="NAME", help=POLICY)] = "flextrain",
    table: Annotated[list[Path] | None, typer.Option(metavar="FOLDER", help=TABLE)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of elastic jobs, and of failures.")] = 0,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET, show_default=False)] = None,
    decisions: Annotated[Path | None, typer.Option(metavar="FILE", help=DECISIONS)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Run a trace of jobs on a simulated cluster, without scaling and under each policy.

    Options for --set, with their defaults:

    `cluster.gpus_per_node=8`: GPUs of a node
    `cluster.backfill=false`: EASY backfilling
    `cluster.failure_interval="30 d"`: mean time between failures of a node; none by default
    `elastic.replicas=false`: scale replicas as well as stages
    `elastic.start="60 s"`: time in which a job with --table restarts from a checkpoint
    `scaling.threshold=0.6`: probability of paying off, above which a job scales up
    `scaling.window="8 h"`: time over which the arrival rate is estimated
    `scaling.counted=32`: GPUs of the smallest job that counts as an arrival
    `scaling.max_scale=4`: largest size of a job, as a multiple of its request
    `scaling.growth_order=smallest`: job that scales up first; or `largest`, or `oldest`

    Exit codes: 0 simulated, 2 wrong input.
    """
    from oppa.cli.option_tables import SimulationOptions, read_options
    from oppa.cli.views import style, trace_view
    from oppa.cluster.comparison import NONE, SharedCluster
    from oppa.cluster.elastic import elastic as made_elastic
    from oppa.cluster.policies import policy_of
    from oppa.cluster.simulation import Failures
    from oppa.cluster.traces import read_trace

    options = read_options(SimulationOptions, changes or ())
    settings, cluster, scaled = options.scaling.record(counted=COUNTED), options.cluster, options.elastic
    names = list(dict.fromkeys((NONE, *(name.strip() for name in policy.split(",") if name.strip()))))
    for name in names:
        policy_of(name, settings)
    failures = Failures(every_s=cluster.failure_interval, seed=seed) if cluster.failure_interval else None
    shared = SharedCluster(gpus=gpus, each=cluster.gpus_per_node, settings=settings, backfill=cluster.backfill, failures=failures)
    kinds = _kinds(table or [], scaled.start, replicas=scaled.replicas) if elastic or table else {}
    jobs = made_elastic(read_trace(trace), elastic, kinds, seed=seed, most=gpus)
    if names != [NONE] and not any(job.table for job in jobs):
        sizes = f", if on {', '.join(map(str, sorted(kinds)))} GPUs" if kinds else ""
        style.err().print(f"no job of the trace is elastic: a share of {elastic:g} of pretraining jobs{sizes}", markup=False)
    found = _simulated(jobs, shared, names)
    if decisions:
        _write_decisions(decisions, found)
    rows = [row for row, _ in found]
    if as_json:
        style.print_json({"rows": [trace_view.policy_json(row, rows[0]) for row in rows]})
    else:
        trace_view.print_policies(rows, jobs, shared)


def generate(
    out: Annotated[Path, typer.Argument(metavar="FILE", help=OUT, show_default=False)],
    like: Annotated[str, typer.Option(metavar="NAME", help=LIKE)] = "seren",
    days: Annotated[float, typer.Option(help="Days that the trace covers.")] = 90.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trace.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the queueing times as JSON on stdout.")] = False,
) -> None:
    """Generate a trace from published distributions, and compare its queueing times with the published ones.

    Exit codes: 0 written, 2 wrong input.
    """
    from oppa.cli.views import style, trace_view
    from oppa.cluster.comparison import NONE, SharedCluster, queues
    from oppa.cluster.generator import generate as made
    from oppa.cluster.generator import like as known_by
    from oppa.cluster.traces import write_trace
    from oppa.report.text_file import write_text

    known = known_by(like)
    jobs = made(known, days=days, seed=seed)
    write_text(out, write_trace(jobs))
    result = _simulated(jobs, SharedCluster(gpus=known.gpus, each=known.gpus_per_node), [NONE])[0][1]
    found = queues(result, known)
    if as_json:
        import dataclasses

        utilisation = result.usage.share(days * 86_400)
        kinds = [dataclasses.asdict(each) for each in found]
        mean = {"queue_s": result.queue_s(()), "published_queue_s": known.queue_s}
        style.print_json({"jobs": len(jobs), "utilisation": utilisation, **mean, "kinds": kinds})
        return
    trace_view.print_queues(found, result, known, days)
    style.err().print(f"written: {out}, {len(jobs):,} jobs", markup=False)


def _simulated(jobs: "Sequence[TraceJob]", shared: "SharedCluster", policies: Sequence[str]) -> "list[tuple[PolicyRow, Result]]":
    """Simulate the jobs under each policy in turn, and show the progress."""
    from oppa.cli.views import style
    from oppa.cluster.comparison import compared

    with style.err().status("simulating") as status:
        return compared(jobs, shared, policies, lambda policy, done: status.update(f"{policy}: {done:,} of {len(jobs):,} jobs done"))


def _kinds(tables: Sequence[Path], start_s: float, *, replicas: bool) -> "dict[int, Elasticity]":
    from oppa.cli.views import style
    from oppa.cluster.elastic import of_table
    from oppa.cluster.models import elasticity

    if tables:
        found = [of_table(folder, start_s=start_s) for folder in tables]
        sizes = [gpus for gpus, _ in found]
        if twice := next((gpus for gpus in sizes if sizes.count(gpus) > 1), None):
            raise InputError(f"two scale tables are of jobs on {twice} GPUs", hint="name one table of each size")
        return dict(found)
    with style.err().status("predicting how FlexTrain's three models scale"):
        return elasticity(replicas=replicas)


def _write_decisions(file: Path, found: "Sequence[tuple[PolicyRow, Result]]") -> None:
    from oppa.report.text_file import write_text

    lines = [
        json.dumps(
            {
                "policy": row.policy,
                "time_s": round(time_s, 3),
                "job": change.job.name,
                "before": change.before,
                "after": change.after,
                "speedup": round(change.speedup, 4),
                "probability": change.probability,
                "reason": change.reason,
            }
        )
        for row, result in found
        for time_s, change in result.scalings
    ]
    write_text(file, "".join(f"{line}\n" for line in lines))
