"""`oppa doctor`: report what can run here, and what is missing."""

from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False) -> None:
    """Check what can run on this machine, and what is missing."""
    from oppa.cli.views import style
    from oppa.errors import EnvironmentLackingError
    from oppa.launchers import checks as places
    from oppa.trials import host

    found = [*host.checks(), *places.checks()]
    if as_json:
        import dataclasses

        style.print_json([dataclasses.asdict(check) for check in found])
    else:
        table = style.table(("", "check", "found", "what it means"))
        for check in found:
            mark = "[green]✓[/]" if check.works else "[red]✗[/]" if check.needed else "[yellow]-[/]"
            table.add_row(mark, check.name, check.found, "" if check.works else check.hint)
        style.out().print(table)
    if broken := [check.name for check in found if check.needed and not check.works]:
        raise EnvironmentLackingError(f"oppa cannot run trials here: {', '.join(broken)}", hint="follow the advice in the lines marked ✗")
