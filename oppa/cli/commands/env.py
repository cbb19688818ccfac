"""`oppa env`: manage the environments of frameworks' runners, which are separate from oppa's own."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oppa.trials.environments import Environment

Named = Annotated[str, typer.Argument(metavar="RUNNER", help="A runner of the catalogue, or a folder with an `environment.toml`.")]

env = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Make, list and remove the environments of frameworks' runners.")


@env.command()
def create(runner: Named) -> None:
    """Make a runner's environment: an interpreter of its own, with the packages that the runner pins.

    Exit codes: 0 made, 2 wrong input, 3 the packages cannot be installed.
    """
    import time

    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.trials import environments

    wanted, began = _environment(runner), time.monotonic()
    if wanted.state != "ready":
        with style.err().status("") as status:

            def tell(what: str) -> None:
                status.update(f"{escape(what)} ...")
                style.err().print(what, markup=False)

            environments.create(wanted, tell)
        style.err().print(f"made in {time.monotonic() - began:.0f} s", markup=False)
    typer.echo(wanted.path)


@env.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print the environments as JSON.")] = False) -> None:
    """List the environments that runners of the catalogue declare, and their state.

    Exit codes: 0 listed.
    """
    from oppa.cli.views import style
    from oppa.trials import environments

    found = environments.known()
    if as_json:
        style.print_json([_plain(each) for each in found])
        return
    table = style.table(("", "runner", "state", "packages", "folder"))
    for each in found:
        ready = each.state == "ready"
        hint = f"`oppa env create {each.name}` makes it"
        content = ", ".join(f"{name} {each.packages[name]}" for name in (each.name, "torch") if name in each.packages)
        table.add_row("[green]✓[/]" if ready else "[yellow]-[/]", each.name, each.state, content if ready else hint, str(each.path))
    style.out().print(table)


@env.command()
def remove(runner: Named) -> None:
    """Remove a runner's environment, and those of its earlier declarations.

    Exit codes: 0 removed, 2 wrong input.
    """
    from oppa.cli.views import style
    from oppa.trials import environments

    for path in environments.remove(_environment(runner)):
        style.err().print(f"removed {path}", markup=False)


def _environment(runner: str) -> "Environment":
    """Return the environment of a runner; raises InputError if the runner declares none."""
    from pathlib import Path

    from oppa import catalog
    from oppa.errors import InputError
    from oppa.trials import environments

    found = environments.environment(catalog.find("runners", runner, base=Path()))
    if found is None:
        having = ", ".join(each.name for each in environments.known()) or "none"
        raise InputError(
            f"the runner `{runner}` declares no environment: it runs in oppa's own", hint=f"runners with an environment: {having}"
        )
    return found


def _plain(each: "Environment") -> dict[str, object]:
    return {"runner": each.name, "state": each.state, "path": str(each.path), "python": str(each.python), "packages": each.packages}
