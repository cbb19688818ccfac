"""`oppa bench` without a name: list every benchmark, its record, and whether the record still matches its command."""

import dataclasses

import typer

STALE = 4
"""Exit code if a record does not match its command, as for `oppa bench ci`."""


def words(text: str | None) -> tuple[str, ...] | None:
    """Return the distinct names in a comma-separated option; None if it is not given."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else None


def show(*, stale: bool, as_json: bool) -> None:
    """Print the list; with `stale`, print only records that do not match, and exit with code 4 if there is one."""
    from oppa.bench.standing import standings
    from oppa.cli.views import style
    from oppa.cli.views.bench_view import print_standings

    every = standings()
    wrong = [each for each in every if each.is_stale]
    listed = wrong if stale else every
    if as_json:
        style.print_json([dataclasses.asdict(each) for each in listed])
    else:
        print_standings(listed)
    if stale and wrong:
        raise typer.Exit(STALE)
