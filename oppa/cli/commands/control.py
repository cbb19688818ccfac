"""`oppa control`: run the service that chooses batch size and layout for training jobs."""

import gc
import re
import shlex
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

TABLE = "Folder of the table from which the policy chooses."
PORT = "Port on this machine's loopback; 0: a free one. Use `ssh -L PORT:127.0.0.1:PORT HOST` from elsewhere."
FOLDER = "Folder of the service's secret and journal; a later start continues from there."
POLICY = "Policy that chooses batch size and layout: `goodput`, `critical-batch`, `norm-test`, `stagewise` or `static`."
EVERY = "Number of a job's steps between two decisions."
TOKEN = "Print the token of the job of this name for `oppa train --control`, and exit; `watch`: that of the live page."


def control(
    table: Annotated[Path, typer.Option(metavar="FOLDER", help=TABLE)],
    port: Annotated[int, typer.Option(min=0, max=65535, help=PORT)] = 8765,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help=FOLDER)] = Path("control"),
    policy: Annotated[str, typer.Option(metavar="NAME", help=POLICY)] = "goodput",
    decision_interval: Annotated[int, typer.Option(min=1, help=EVERY)] = 10,
    token: Annotated[str, typer.Option(metavar="JOB", help=TOKEN)] = "",
) -> None:
    """Choose batch size and layout for training jobs, until Ctrl-C. Without the service, jobs keep both and continue.

    A live page shows all jobs.

    Exit codes: 0 stopped, 2 wrong input, 3 the port or the folder cannot be used.
    """
    from oppa.cli.views import style
    from oppa.control.registry import policy_of
    from oppa.control.service.connections import raise_limit
    from oppa.control.service.factory import ControllerFactory
    from oppa.control.service.page import LIVE_PAGE
    from oppa.control.service.server import Service
    from oppa.control.service.thread import serve_in_thread
    from oppa.control.service.tokens import SECRET, Tokens
    from oppa.errors import InputError
    from oppa.protocol.messages import NAME
    from oppa.table.table import Table
    from oppa.units import with_noun

    if token:
        if not re.fullmatch(NAME, token):
            raise InputError(f"`--token {token}` is not a valid job name", hint="use up to 100 letters, digits, `-`, `_` and `.`")
        is_new, tokens = not (folder / SECRET).exists(), Tokens.of(folder)
        if is_new:
            style.err().print(f"warning: `{folder}` is new: the token is for a service that starts with this --folder", markup=False)
        typer.echo(tokens.of_watcher() if token == "watch" else tokens.of_job(token))
        return
    profiled = Table.read(folder=table)
    raise_limit()
    service = Service(folder, ControllerFactory(profiled, policy_of(policy), every=decision_interval, policy=policy))
    gc.freeze()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with serve_in_thread(service, port) as own:
            jobs = with_noun(len(service.jobs), "job")
            style.err().print(f"policy    {policy}, {len(profiled.rows):,} rows in the table, {jobs}", markup=False)
            own_token = f"oppa control --table {shlex.quote(str(table))} --folder {shlex.quote(str(folder))} --token JOB"
            style.err().print(f"jobs      127.0.0.1:{own}, with the token of `{own_token}`", markup=False, soft_wrap=True)
            style.err().print(f"live page {style.private_link(service.live_page(own), folder / LIVE_PAGE)}", markup=False, soft_wrap=True)
            stop.wait()
    finally:
        service.close()
