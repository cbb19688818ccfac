"""Measure the scale table of a job, as `oppa scale-table JOB` does, and show it."""

from collections.abc import Sequence
from pathlib import Path


def measure_scales(
    job: Path, devices: tuple[int, int], folder: Path, *, measure: str, settings: Sequence[str], command: Sequence[str], as_json: bool
) -> None:
    """Measure, predict, write and print a scale table; raises OppaError for a wrong job, and if nothing could run."""
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
