"""`oppa bench`: list every benchmark and the state of its record, and run benchmarks."""

from collections.abc import Callable
from typing import Annotated

import typer

from oppa.bench import checkout
from oppa.cli.commands import bench_ci, bench_list, bench_search

bench = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")
bench.command("search")(bench_search.search)
bench.command("ci")(bench_ci.ci)
for _name, _command in checkout.commands().items():
    bench.command(_name)(_command)


@bench.callback()
def _bench(
    context: typer.Context,
    stale: Annotated[bool, typer.Option("--stale", help="List only records that do not match their command.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON on stdout.")] = False,
) -> None:
    """List every benchmark: what it shows, where its record is, and whether the record still matches its command.

    A record matches if arguments, tasks and input files have not changed since. `oppa bench all` runs the short benchmarks.

    Exit codes: 0 listed, 4 with --stale if a record does not match.
    """
    if context.invoked_subcommand is None:
        bench_list.show(stale=stale, as_json=as_json)


def _refusing(name: str) -> Callable[[], None]:
    def command() -> None:
        checkout.require_checkout(name)

    return command


for _name in () if checkout.is_checkout() else checkout.NAMES:
    bench.command(
        _name, help="Run an experiment; it needs a checkout.", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
    )(_refusing(_name))
