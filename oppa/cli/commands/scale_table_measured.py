"""Measure the scale table of a job, as `oppa scale-table JOB` does, and show it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oppa.report.record import Section
    from oppa.tuning.scale_profile import ScaleProfile


def measure_scales(
    job: Path, devices: tuple[int, int], folder: Path, *, measure: str, settings: Sequence[str], command: Sequence[str], as_json: bool
) -> None:
    """Measure, predict, write and print a scale table; raises OppaError for a wrong job, and if nothing could run."""
    from oppa import api
    from oppa.cli.views import style
    from oppa.cli.views.session_view import SessionView

    view = SessionView("--out")
    with view.running(None):
        found = api.profile_scales(job, devices=devices, table=folder, measure=measure, settings=settings, command=command, callback=view)
    if as_json:
        style.print_json(found.to_dict())
    else:
        style.print_section(_section(found))
    kept = sum(not entry.left_out for entry in found.entries)
    style.err().print(f"written: {found.folder}, {kept} of {len(found.entries)} numbers of devices", markup=False)


def _section(found: "ScaleProfile") -> "Section":
    import math

    from oppa.report.record import Section
    from oppa.units import format_seconds

    rows = [
        (
            entry.devices,
            entry.row.configuration.id,
            entry.row.source,
            format_seconds(1 / entry.row.steps_per_s),
            f"{math.expm1(entry.row.log_stddev):.1%}",
            f"{entry.speedup:.2f}",
            entry.left_out,
        )
        for entry in found.entries
    ]
    text = "All sizes were measured."
    if found.law is not None:
        missed = math.expm1(found.law.log_stddev)
        text = (
            f"The law of the predicted sizes misses a measured size by {missed:.1%}, if it is fitted to the others. "
            "An error is at least that, and reaches to the farthest law that explains the measurements: it grows outside their range."
        )
    columns = (">devices", "configuration", "source", ">step", ">error", ">speed-up", "left out")
    return Section(title="Scale table", text=text, columns=columns, rows=rows)
