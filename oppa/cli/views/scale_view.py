"""Print the tables of `oppa scale-table`."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.cli.views import style
from oppa.report.record import Section
from oppa.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from oppa.pipeline.scaling import Entry
    from oppa.tuning.run_scales import RunScales
    from oppa.tuning.scale_profile import ScaleEntry, ScaleProfile


def print_written(folder: Path, entries: "Sequence[Entry | ScaleEntry]") -> None:
    """Print where the table is, and how many numbers of devices it has."""
    kept = sum(not entry.left_out for entry in entries)
    style.err().print(f"written: {folder}, {kept} of {len(entries)} numbers of devices", markup=False)


def predicted_json(entry: "Entry") -> dict[str, Any]:
    """Return a predicted number of devices as JSON values."""
    best = {field.name: getattr(entry.best, field.name) for field in dataclasses.fields(entry.best)}
    facts = {"devices": entry.devices, "speedup": entry.speedup, "modelled_speedup": entry.modelled_speedup, "left_out": entry.left_out}
    return {**facts, **best, "prediction": dataclasses.asdict(entry.best.prediction), "passes": entry.best.passes is not None}


def print_predicted(found: "RunScales") -> None:
    """Print the scale table of a run, which is predicted from its first steps."""
    present = found.spec.configuration
    rows = [
        (
            entry.devices,
            entry.best.dp,
            entry.best.pp,
            entry.best.chunks,
            entry.best.schedule,
            entry.best.stage_layout,
            format_seconds(entry.best.prediction.step_s),
            f"{entry.speedup:.2f}",
            f"{entry.modelled_speedup:.2f}",
            format_bytes(entry.best.prediction.peak_bytes),
            entry.left_out,
        )
        for entry in found.entries
    ]
    shown = Section(
        title="Scale table",
        text=f"Predicted from the first steps of `{present.id}`, batch {present.global_batch}. Speed-ups are over the fastest "
        "pipeline on the present number of devices: by the profile, and by FlexTrain's equation 5.",
        columns=(">devices", ">dp", ">pp", ">chunks", "schedule", "stages", ">step", ">speed-up", ">eq. 5", ">memory", "left out"),
        rows=rows,
    )
    style.print_section(shown)


def print_measured(found: "ScaleProfile") -> None:
    """Print the scale table of a job, some of whose sizes were measured."""
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
    style.print_section(Section(title="Scale table", text=text, columns=columns, rows=rows))
