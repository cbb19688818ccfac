"""`oppa scale-table`: a job's throughput on other numbers of devices, predicted from the first steps of one run, or measured."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from oppa.cli.job_options import Changes, Command, ModelWords, settings_of
from oppa.errors import InputError, require_known
from oppa.plain_text import clipped
from oppa.problem.bounds import MOST_DEVICES

SOURCE = "Folder of a run of `oppa train` whose first steps were profiled; or a job file, which is measured."
DEVICES = "Numbers of devices to predict."
MEASURE = "Numbers of devices to measure, separated by commas; a few between the first and the last by default."
REPLICAS = "Change only the number of stages, so that results stay bitwise identical."
SCHEDULES = "Names of schedules, separated by commas; `search` searches for one. The default is {}; or `search` if the run uses it."
SEARCH_S = "Time limit of all searches for schedules together, in seconds."
OUT = "Folder of the table; `scale-table` in the run's folder by default, or next to the job file."
FIRST = "1f1b,interleaved,zb-h1,zb-v"


def scale_table(
    source: Annotated[Path, typer.Argument(metavar="RUN|JOB", help=SOURCE, show_default=False)],
    command: Command = None,
    *,
    devices: Annotated[str, typer.Option(metavar="FIRST..LAST", help=DEVICES)],
    same_replicas: Annotated[bool, typer.Option("--same-replicas", help=REPLICAS)] = False,
    schedules: Annotated[str, typer.Option(metavar="NAMES", help=SCHEDULES.format(FIRST.replace(",", ", ")), show_default=False)] = "",
    search_s: Annotated[float, typer.Option("--search-s", min=0, help=SEARCH_S)] = 60.0,
    measure: Annotated[str, typer.Option(metavar="SIZES", help=MEASURE, show_default=False)] = "",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    changes: Changes = None,
    model: ModelWords = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON on stdout.")] = False,
) -> None:
    """Find the fastest configuration on each number of devices, and write a table of those that are worth a change.

    From a run, predict the fastest pipeline that fits. Speed-ups are over that of the present number of devices, which stays if it is in
    the range. Searched schedules are stored with the table, and jobs use them.

    From a job, with or without a launch line after `--`, measure a few numbers of whole hosts by short trials, as `oppa profile` does.
    Predict the others from them, and state the error. The same command resumes it.

    Exit codes: 0 written, 1 nothing fits or no number of devices is worth a change, 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa.training.run.run_folder import SCALES

    if command or source.is_file() or source.suffix == ".toml":
        _refuse({"--same-replicas": same_replicas, "--schedules": schedules}, "a job, whose throughput is measured")
        folder, words = out or source.parent / SCALES, command or ()
        _measure(source, _range(devices), folder, measure=measure, settings=settings_of(changes, model), command=words, as_json=as_json)
        return
    _refuse({"--measure": measure, "--set": changes, "--model": model}, "a run, from which all is predicted")
    _predict(source, _range(devices), out or source / SCALES, schedules, same_replicas=same_replicas, search_s=search_s, as_json=as_json)


def _refuse(options: Mapping[str, object], source: str) -> None:
    """Raise InputError if an option is given that has no effect on a kind of source."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"`{given[0]}` has no effect on {source}", hint="remove it")


def _measure(
    job: Path, devices: tuple[int, int], folder: Path, *, measure: str, settings: Sequence[str], command: Sequence[str], as_json: bool
) -> None:
    """Measure, predict, write and print the scale table of a job; raises OppaError for a wrong job, and if nothing could run."""
    from oppa import api
    from oppa.cli.views import scale_view, style
    from oppa.cli.views.session_view import SessionView

    view = SessionView("--out")
    with view.running(None):
        found = api.profile_scales(job, devices=devices, table=folder, measure=measure, settings=settings, command=command, callback=view)
    if as_json:
        style.print_json(found.to_dict())
    else:
        scale_view.print_measured(found)
    scale_view.print_written(found.folder, found.entries)


def _predict(
    run: Path, devices: tuple[int, int], folder: Path, schedules: str, *, same_replicas: bool, search_s: float, as_json: bool
) -> None:
    """Predict, write and print the scale table of a run."""
    from oppa.cli.views import scale_view, style
    from oppa.pipeline.registry import SEARCH
    from oppa.training.run.run_folder import RunSpec
    from oppa.tuning.run_scales import predict_scales

    spec, (first, last) = RunSpec.read(run), devices
    names = _schedules(schedules or (SEARCH if spec.configuration.schedule == SEARCH else FIRST))
    with style.err().status("predicting") as status:
        found = predict_scales(
            run, spec, range(first, last + 1), schedules=names, same_replicas=same_replicas, search_s=search_s, tell=status.update
        )
    found.write(folder)
    if as_json:
        style.print_json({"table": str(folder), "entries": [scale_view.predicted_json(entry) for entry in found.entries]})
    else:
        scale_view.print_predicted(found)
    scale_view.print_written(folder, found.entries)
    if found.cut_short:
        hint = f"the search for schedules ended early on {found.cut_short} numbers of devices, after {search_s:g} s; raise --search-s"
        style.err().print(hint, markup=False)


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= MOST_DEVICES:
        hint = f"use two numbers from 1 to {MOST_DEVICES}, the smaller first: `--devices 2..64`"
        raise InputError(f"`--devices {clipped(text)}` is no range", hint=hint)
    return first, last


def _schedules(text: str) -> list[str]:
    from oppa.pipeline.registry import SCHEDULES

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        require_known(name, SCHEDULES, f"`--schedules {name}` is unknown")
    if not names:
        raise InputError("`--schedules` names no schedule", hint=f"use some of {FIRST}")
    return names
