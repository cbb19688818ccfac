"""`oppa cluster submit`, `run`, `status`, `cancel` and `retry`: manage elastic jobs on a real cluster."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from oppa.cli.job_options import Command

SPOOL = "Folder of elastic jobs, on a file system that all hosts share."
JOB = "Job file, whose number of hosts is the number that the job requests."
SIZES = "Folder of the scale table that `oppa scale-table` wrote."
HOSTS = "Number of hosts that the job requests; the smallest of the table by default."
NAME = "Name of the elastic job; the job's own name by default."
CHECK = "Seconds between two checks of the queue."
DRY = "Print the decisions; start and cancel nothing."
ONCE = "Check the queue once, and exit."
SCHEDULER = "Scheduler that shares the nodes: `slurm`, or an installed one."
PARTITION = "Partition whose nodes are shared, as sbatch takes it; Slurm's default partition by default."
OPTION = "Change an option of the scheduler, such as sbatch's `account=mine`, or of scaling, as listed above. Repeat it for more."
COUNTED = 4
"""Default of the smallest job, in hosts, that counts as an arrival."""
WHICH = "Name of the elastic job, as `oppa cluster status` lists it."

Spool = Annotated[Path, typer.Argument(metavar="SPOOL", help=SPOOL, show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help=WHICH, show_default=False)]


def submit(
    spool: Spool,
    job: Annotated[Path, typer.Argument(metavar="JOB", help=JOB, show_default=False)],
    command: Command = None,
    *,
    table: Annotated[Path, typer.Option(metavar="FOLDER", help=SIZES)],
    hosts: Annotated[int | None, typer.Option(min=1, help=HOSTS)] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help=NAME)] = "",
) -> None:
    """Submit an elastic job to `oppa cluster run`.

    With a launch line after `--`, the job trains your own trainer, which opens its run with `oppa_client` and declares `elastic`.

    Exit codes: 0 submitted, 2 wrong input.
    """
    from oppa.cli.views import style
    from oppa.cluster.elastic_jobs.spool import submit as put
    from oppa.units import with_noun

    taken = put(spool, job, table, hosts=hosts, name=name, command=command or ())
    sizes = ", ".join(f"{size.gpus} ({size.speedup:.2f})" for size in taken.table.sizes)
    asked = with_noun(taken.hosts, "host")
    style.err().print(f"submitted: {taken.folder}, on {asked}; numbers of hosts, with their speed-ups: {sizes}", markup=False)


def run(
    spool: Spool,
    check_s: Annotated[float, typer.Option("--check-s", min=0.2, help=CHECK)] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY)] = False,
    once: Annotated[bool, typer.Option("--once", help=ONCE)] = False,
    scheduler: Annotated[str, typer.Option(metavar="NAME", help=SCHEDULER)] = "slurm",
    partition: Annotated[str, typer.Option(metavar="NAME", help=PARTITION)] = "",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help=OPTION, show_default=False)] = None,
) -> None:
    """Train the elastic jobs of a spool on the idle nodes of a cluster, and return nodes for which other jobs wait.

    The command ends when all jobs have ended. Ctrl-C ends only the command: jobs continue, and the same command manages them again.

    Options of scaling for --set, with their defaults:

    `scaling.threshold=0.6`: probability of paying off, above which a job scales up
    `scaling.window="8 h"`: time over which the arrival rate is estimated
    `scaling.counted=4`: hosts of the smallest job that counts as an arrival
    `scaling.max_scale=4`: largest size of a job, as a multiple of its request
    `scaling.growth_order=smallest`: job that scales up first; or `largest`, or `oldest`

    Exit codes: 0 all trained, 1 a job has failed or is damaged, 2 wrong input, 3 environment lacking, 130 stopped.
    """
    import contextlib
    import time

    from oppa.cli.option_tables import ScalingOptions, read_options
    from oppa.cli.views import style
    from oppa.cluster.elastic_jobs.controller import ClusterController
    from oppa.cluster.elastic_jobs.spool import folders
    from oppa.cluster.scheduler import make_scheduler
    from oppa.problem.settings import parse_settings
    from oppa.training.run.run_folder import held
    from oppa.trials.interruption import Interruption
    from oppa.units import with_noun

    scaling = [word for word in changes or () if word.startswith("scaling.")]
    settings = read_options(ScalingOptions, scaling).scaling.record(counted=COUNTED, unit="hosts")
    own = parse_settings([word for word in changes or () if word not in scaling])
    options = {**({"partition": partition} if partition else {}), **own}
    controller = ClusterController(
        spool,
        make_scheduler(scheduler, options),
        settings,
        tell=lambda what: style.err().print(f"{time.strftime('%H:%M:%S')}  {what}", markup=False, soft_wrap=True),
        act=not dry_run,
    )
    interruption = Interruption()
    count = with_noun(len(folders(spool)), "job")
    style.err().print(f"spool  {spool}, {count}; `oppa cluster status {shlex.quote(str(spool))}` lists them", markup=False, soft_wrap=True)
    with contextlib.nullcontext() if dry_run else held(spool, done="managed"), interruption.caught():
        found = controller.run(interruption.check, every_s=check_s, once=once)
    raise typer.Exit(int(bool(controller.damaged) or any(status.ending in ("failed", "given up") for status in found)))


def status(spool: Spool, as_json: Annotated[bool, typer.Option("--json", help="Print the jobs as JSON on stdout.")] = False) -> None:
    """List the elastic jobs of a spool: their hosts, steps and losses.

    Exit codes: 0 listed, 2 wrong input.
    """
    import time

    from oppa.cli.views import style
    from oppa.cluster.elastic_jobs.spool import ElasticJob, folders
    from oppa.cluster.elastic_jobs.status import status_of
    from oppa.errors import OppaError

    rows = list[dict[str, Any]]()
    for folder in folders(spool):
        try:
            found = status_of(ElasticJob.read(folder))
        except (OppaError, OSError) as error:
            rows.append({"name": folder.name, "state": "damaged", "why": str(error)})
            continue
        sizes = {"hosts": found.hosts, "wanted": found.desired, "asks_for": found.job.hosts}
        put_off = found.job.desired().put_off(time.time())
        reason = {"why": f"{folder.name}: {put_off}"} if put_off else {}
        rows.append({"name": folder.name, "state": found.state, **sizes, "steps": found.steps, "loss": found.loss, **reason})
    if as_json:
        style.print_json({"jobs": rows})
        return
    if not rows:
        style.out().print(f"{spool} has no elastic job; `oppa cluster submit` adds one", markup=False)
        return
    from oppa.report.record import Section

    names = ("name", "state", "hosts", "wanted", "asks_for", "steps")
    cells = [(*(row.get(name, "") for name in names), "" if row.get("loss") is None else f"{row['loss']:.3f}") for row in rows]
    why = "".join(f" {row['why']}." for row in rows if "why" in row)
    columns = ("job", "state", ">hosts", ">desired", ">requested", ">steps", ">loss")
    style.print_section(Section(title="Elastic jobs", text=f"In {spool}.{why}", columns=columns, rows=cells))


def cancel(spool: Spool, name: Name) -> None:
    """Cancel an elastic job: it stops after its present step, and keeps a checkpoint.

    Exit codes: 0 cancelled, 2 wrong input.
    """
    from oppa.cli.views import style
    from oppa.cluster.elastic_jobs.spool import job_of

    job = job_of(spool, name)
    job.cancel()
    when = "it stops after its present step" if job.supervised() else "it was not running"
    again = f"oppa cluster retry {shlex.quote(str(spool))} {name}"
    style.err().print(f"cancelled: {job.folder}; {when}; `{again}` resumes it", markup=False, soft_wrap=True)


def retry(spool: Spool, name: Name) -> None:
    """Let `oppa cluster run` resume an elastic job that was cancelled or has failed, from its newest checkpoint.

    Exit codes: 0 queued, 2 wrong input.
    """
    from oppa.cli.views import style
    from oppa.cluster.elastic_jobs.spool import job_of
    from oppa.units import with_noun

    job = job_of(spool, name)
    job.retry()
    style.err().print(f"queued: {job.folder}, on {with_noun(job.hosts, 'host')}", markup=False, soft_wrap=True)
