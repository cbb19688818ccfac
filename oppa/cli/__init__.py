"""Define the command line: argv in, tables out. Only this package prints or exits; each command has a file.

Exit codes: 0 success, 1 nothing feasible, no verdict or training failed, 2 wrong input, 3 environment lacking, 4 a regression. Further
codes: 70 a mistake in oppa, 130 interrupted and resumable, 141 nobody reads the output any more.

Each command imports its work inside its function, so that `oppa --help` loads typer and nothing else.
"""

import gc
import io
import os
import sys
from typing import Annotated

import typer

from oppa.cli import tool_environment
from oppa.cli.commands import (
    bench,
    cluster,
    control,
    doctor,
    emulate,
    env,
    explain,
    export,
    import_,
    init,
    pipeline_schedule,
    plan,
    predict,
    profile,
    report,
    scale_table,
    schema,
    show,
    space,
    train,
    train_policy,
    tune,
    verify,
)
from oppa.cli.environment import CommandGroup
from oppa.cli.failure import INTERNAL, UNREAD, exit_code, full_disk, print_error, print_internal_error
from oppa.cli.job_options import LaunchLineCommand, verbose_first
from oppa.cli.renamed import refuse_renamed
from oppa.cli.usage import refuse_empty, usage_error
from oppa.errors import OppaError
from oppa.trials import processes

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
BEFORE, DURING, CLUSTER, TOOLS = "Before a run", "During a run", "On a cluster", "Tools"
"""Panels of the help, by purpose."""
PANELS = {
    BEFORE: (
        *(init.init, doctor.doctor, space.space, predict.predict, tune.tune, profile.profile),
        *(verify.verify, show.show, report.report, explain.explain, export.export),
    ),
    DURING: (train.train, control.control, plan.plan, train_policy.train_policy),
    CLUSTER: (scale_table.scale_table,),
    TOOLS: (pipeline_schedule.pipeline_schedule, emulate.emulate, schema.schema),
}
WITH_LAUNCH_LINE = (tune.tune, profile.profile, space.space, predict.predict, explain.explain, train.train, scale_table.scale_table)
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel, cls=LaunchLineCommand if command in WITH_LAUNCH_LINE else None)(command)
app.command("import", rich_help_panel=BEFORE)(import_.import_)
app.add_typer(cluster.cluster, name="cluster", cls=CommandGroup, rich_help_panel=CLUSTER)
app.add_typer(bench.bench, name="bench", rich_help_panel=TOOLS)
app.add_typer(env.env, name="env", cls=CommandGroup, rich_help_panel=TOOLS)


def _version(wanted: bool) -> None:
    if wanted:
        from oppa import __version__

        typer.echo(f"oppa {__version__}")
        raise typer.Exit


COLLECTED = 50_000, 20, 50
"""Thresholds of the garbage collector. Python's own cost a sixth of the time in which torch and BoTorch load, and all jobs of
`oppa control` wait during a collection."""
VERBOSE = "Log to stderr; -vv logs more. Both may follow the command."


@app.callback(epilog="`OPPA_<COMMAND>_<OPTION>` sets an option: `OPPA_TUNE_STUDY` sets `--study` of `oppa tune`.")
def _oppa(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, envvar="OPPA_VERBOSE", show_envvar=False, help=VERBOSE)] = 0,
) -> None:
    """Find the fastest way to run a distributed training job, and verify it by measurement."""
    from oppa.cli.logs import show_logs

    show_logs(verbose)


def main() -> None:
    """Run the command line, and convert every OppaError to a message and an exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it: no character of an output ends a command
    gc.set_threshold(*COLLECTED)
    tool_environment.leave(os.environ)
    processes.own_children()
    try:
        refuse_empty(sys.argv[1:])
        refuse_renamed(sys.argv[1:])
        _run()
    except OppaError as error:
        print_error(shown := full_disk(error) or error)
        sys.exit(exit_code(shown))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in buffers
        sys.exit(UNREAD)
    except Exception as error:  # noqa: BLE001 (the end of the line: every foreseen error is an OppaError)
        if (full := full_disk(error)) is not None:
            print_error(full)
            sys.exit(exit_code(full))
        print_internal_error(error)
        sys.exit(INTERNAL)


def _run() -> None:
    """Run the command; raises BrokenPipeError if nobody reads its output any more, which typer turns into exit code 1."""
    try:
        code = app(args=verbose_first(sys.argv[1:]), prog_name="oppa", standalone_mode=False)
    except typer.TyperException as refused:
        if refused.format_message():  # empty after the help of a command without arguments
            print_error(usage_error(refused))
        sys.exit(2)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    finally:
        sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)
