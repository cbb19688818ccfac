"""`oppa bench`: list every benchmark and the state of its record, and run benchmarks."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from oppa.bench import checkout
from oppa.cli.commands import bench_ci, bench_list, bench_search
from oppa.cli.environment import CommandGroup

ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}


class BenchmarkGroup(CommandGroup):
    """Groups the benchmarks, and imports the experiments of a checkout when the first of them is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all benchmarks."""
        return [*dict.fromkeys([*super().list_commands(ctx), *checkout.NAMES])]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a benchmark; None if there is none of that name."""
        if cmd_name not in self.commands:
            self.commands.update(_experiments())
        return super().get_command(ctx, cmd_name)


bench = typer.Typer(cls=BenchmarkGroup, invoke_without_command=True, rich_markup_mode="rich")
bench.command("search")(bench_search.search)
bench.command("ci")(bench_ci.ci)


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


def _experiments() -> dict[str, Any]:
    """Return the commands of the experiments by name; without a checkout, commands that refuse to run."""
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    for name, command in checkout.commands().items():
        app.command(name)(command)
    for name in () if checkout.is_checkout() else checkout.NAMES:
        app.command(name, help="Run an experiment; it needs a checkout.", context_settings=ANY_WORDS)(_refusing(name))
    return dict(typer.main.get_group(app).commands)


def _refusing(name: str) -> Callable[[], None]:
    def command() -> None:
        checkout.require_checkout(name)

    return command
