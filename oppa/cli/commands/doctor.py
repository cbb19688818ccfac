"""`oppa doctor`: report what can run here, and what is missing; with `--measure`, how fast its devices and links are."""

from pathlib import Path
from typing import Annotated

import typer

from oppa.errors import InputError

MEASURE = "Time matrix products, memory and collectives; under `torchrun` or `srun`, also between hosts."
OUT = "Write the measured figures as a hardware file, for `hardware` in `\\[cluster]` of a job; needs --measure."
RANKS = "Number of ranks to measure with on this host; by default one for each GPU, on CPUs one for each core, from 2 to 4."
USUAL_TIME = "0.5 s"
FIGURE_TIME = f"Least time of each figure; the default is {USUAL_TIME}."


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks or the measurement as JSON.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help=MEASURE)] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.toml", help=OUT)] = None,
    ranks: Annotated[int | None, typer.Option(min=1, max=64, help=RANKS, show_default=False)] = None,
    figure_time: Annotated[str | None, typer.Option(metavar="DURATION", help=FIGURE_TIME)] = None,
) -> None:
    """Check what can run on this machine, and what is missing; or measure its devices and links.

    `oppa doctor --measure --out mycluster.toml` writes a hardware file. A job uses it with `hardware = "mycluster.toml"` in `\\[cluster]`.

    Exit codes: 0 checked or measured, 2 wrong input, 3 environment lacking.
    """
    if measure:
        _measure(as_json=as_json, out=out, ranks=ranks, figure_time=figure_time or USUAL_TIME)
        return
    for option, value in (("--out", out), ("--ranks", ranks), ("--figure-time", figure_time)):
        if value is not None:
            raise InputError(f"`{option} {value}` has no effect without `--measure`", hint=f"add `--measure`, or remove `{option}`")
    _check(as_json=as_json)


def _check(*, as_json: bool) -> None:
    from oppa.cli.views import style
    from oppa.errors import EnvironmentLackingError
    from oppa.launchers import checks as launcher_checks
    from oppa.trials import host

    found = [*host.checks(), *launcher_checks.checks()]
    if as_json:
        import dataclasses

        style.print_json([dataclasses.asdict(check) for check in found])
    else:
        table = style.table(("", "check", "found", "what to do"))
        for check in found:
            mark = "[green]✓[/]" if check.works else "[red]✗[/]" if check.needed else "[yellow]-[/]"
            table.add_row(mark, check.name, check.found, "" if check.works else check.hint)
        style.out().print(table)
    if broken := [check.name for check in found if check.needed and not check.works]:
        raise EnvironmentLackingError(f"oppa cannot run trials here: {', '.join(broken)}", hint="follow the advice in the lines marked ✗")


def _measure(*, as_json: bool, out: Path | None, ranks: int | None, figure_time: str) -> None:
    import datetime

    from oppa.cli.views import style
    from oppa.cli.views.measurement_view import print_measurement, print_nodes
    from oppa.cli.views.status import showing_status
    from oppa.launchers.measurement.derived import derive
    from oppa.launchers.measurement.hardware_text import hardware_text
    from oppa.launchers.measurement.nodes import slow_nodes
    from oppa.launchers.measurement.start import measure
    from oppa.report.text_file import write_text

    _check_out(out)
    with showing_status() as tell:
        found = measure(ranks=ranks, figure_s=_seconds(figure_time), tell=tell)
    if found is None:  # another rank prints the figures
        return
    derived = derive(found)
    text, slow = hardware_text(found, derived, datetime.datetime.now(datetime.UTC).date()), slow_nodes(found.nodes)
    if as_json:
        shown = {**found.to_dict(), "slow_nodes": [each.to_dict() for each in slow]}
        style.print_json({**shown, "known_device": derived.known.name, "file": str(out) if out else None})
    else:
        print_measurement(found, derived)
        print_nodes(found, slow)
    if out:
        write_text(out, text)
        style.err().print(f'written: {out}\n\nadd to [cluster] of a job\n  hardware = "{out}"', markup=False)


def _seconds(figure_time: str) -> float:
    from oppa.units import parse_seconds

    seconds = parse_seconds(figure_time)
    if not 0 < seconds <= 60:
        raise InputError(f"`--figure-time {figure_time}` is out of range", hint="use more than 0 s and at most 60 s")
    return seconds


def _check_out(out: Path | None) -> None:
    """Check the name of the file before minutes of measurement.

    Raises:
        InputError: it does not end with `.toml`, exists, or has no folder.
    """
    if out is None:
        return
    if out.suffix != ".toml":
        raise InputError(f"`--out {out}` is no TOML file", hint=f"use `{out.with_suffix('.toml')}`: a job names the file by its path")
    if out.exists():
        raise InputError(f"`{out}` exists", hint="name another file, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"`{out}` cannot be written: its folder does not exist", hint="name a file in a folder that exists")
