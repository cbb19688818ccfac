"""`oppa cluster`: run elastic jobs on a shared cluster, simulated on a trace, or real."""

import typer

from oppa.cli.commands import cluster_spool, cluster_trace
from oppa.cli.job_options import LaunchLineCommand

cluster = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for command in (
    cluster_trace.simulate,
    cluster_trace.generate,
    cluster_spool.submit,
    cluster_spool.run,
    cluster_spool.status,
    cluster_spool.cancel,
    cluster_spool.retry,
):
    cluster.command(cls=LaunchLineCommand if command is cluster_spool.submit else None)(command)


@cluster.callback()
def _cluster() -> None:
    """Scale elastic jobs up on the idle devices of a shared cluster, and return the devices when other jobs wait."""
