"""Make the scale table of any job: some sizes are measured by short trials, and a law predicts the rest with its error.

A size is a number of whole hosts. The global batch is the same on all of them.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oppa.errors import InfeasibleError, InputError, JobError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Configuration
from oppa.problem.launch_line.one_host import require_all_hosts
from oppa.problem.problem import Problem
from oppa.table import Origin, Table, TableRow
from oppa.table.scaling_law import ScalingLaw

MEASURED = 4
"""Number of sizes that are measured unless the user names them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleEntry:
    """Holds the fastest configuration of one number of devices."""

    devices: int
    row: TableRow
    speedup: float
    """Throughput over that of the fewest devices."""
    left_out: str = ""
    """Why the table leaves the size out; empty if it does not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleProfile:
    """Holds the scale table of a job, as it was written to its folder."""

    folder: Path
    entries: tuple[ScaleEntry, ...]
    law: ScalingLaw | None
    """The law that predicts sizes; None if all were measured."""

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON values, as `oppa scale-table --json` prints it."""
        facts = [
            {
                "devices": entry.devices,
                "speedup": entry.speedup,
                "left_out": entry.left_out,
                "steps_per_s": entry.row.steps_per_s,
                "log_stddev": entry.row.log_stddev,
                "source": entry.row.source,
                "configuration": entry.row.configuration.to_dict(),
            }
            for entry in self.entries
        ]
        return {"table": str(self.folder), "entries": facts}


def problems_of(problem: Problem, first: int, last: int, at: Callable[[int], Problem]) -> dict[int, Problem]:
    """Return the job on each number of devices that is a number of whole hosts, and on which it has a configuration.

    Args:
        problem: The job on its own number of hosts.
        at: Returns the job on a number of hosts.

    Raises:
        InputError: there is none between `first` and `last`, or the launch line is for one host alone.
    """
    each, found, refused = problem.cluster.devices_per_host, dict[int, Problem](), ""
    hint = f"use multiples of {each}"
    if problem.command is not None:
        require_all_hosts(problem.command.argv, last // each)
    for hosts in range(math.ceil(first / each), last // each + 1):
        try:
            found[hosts * each] = at(hosts)
        except JobError as error:  # the batch does not divide
            refused, hint = f": {error.message}", error.hint
    if not found:
        message = f"`--devices {first}..{last}` has no number of hosts of {each} devices on which the job has a configuration"
        raise InputError(message + refused, hint=hint)
    return found


def measured_sizes(sizes: Sequence[int], named: str) -> list[int]:
    """Return the sizes to measure: those that the user names, or a few between the first and the last at equal ratios.

    Raises:
        InputError: a named one is no size, or one alone is named of several.
    """
    if not named:
        at = (sizes[0] * (sizes[-1] / sizes[0]) ** (step / (MEASURED - 1)) for step in range(MEASURED))
        return sorted({min(sizes, key=lambda size: abs(math.log(size / target))) for target in at})
    words = [word.strip() for word in named.split(",")]
    if unknown := [word for word in words if whole_number(word) not in sizes]:
        some = ", ".join(map(str, sizes[:12]))
        raise InputError(f"`--measure {clipped(named)}`: `{clipped(unknown[0])}` is none of the sizes", hint=f"use some of {some}")
    chosen = sorted(set(map(int, words)))
    if len(chosen) == 1 < len(sizes):
        raise InputError(f"`--measure {named}`: one size predicts no others", hint="name two or more")
    return chosen


def scale_entries(problems: Mapping[int, Problem], tables: Mapping[int, Table]) -> tuple[list[ScaleEntry], ScalingLaw | None]:
    """Return the fastest row of each size, measured or predicted, and the law.

    Args:
        problems: The job on each number of devices.
        tables: The tables of the sizes that were measured, at one global batch.

    Raises:
        InfeasibleError: a measured size has no row that was measured.
        MeasurementError: a single size predicts no others.
    """
    measured = {devices: _fastest(table, devices) for devices, table in tables.items()}
    law = _law(measured) if measured.keys() != problems.keys() else None
    rows = {devices: measured.get(devices) or _predicted(problems[devices], measured, law) for devices in sorted(problems)}
    found, fastest = list[ScaleEntry](), (0, 0.0)
    first = next(iter(rows.values()))
    for devices, row in rows.items():
        left_out = "" if row.steps_per_s > fastest[1] else f"no faster than {fastest[0]} devices"
        found.append(ScaleEntry(devices=devices, row=row, speedup=row.steps_per_s / first.steps_per_s, left_out=left_out))
        fastest = max(fastest, (devices, row.steps_per_s), key=lambda each: each[1])
    return found, law


def _law(measured: Mapping[int, TableRow]) -> ScalingLaw:
    times_s = {devices: 1 / row.steps_per_s for devices, row in measured.items()}
    return ScalingLaw.fit(times_s, {devices: row.log_stddev for devices, row in measured.items()})


def _fastest(table: Table, devices: int) -> TableRow:
    rows = [row for row in table.rows if row.source == "measured"]
    if not rows:
        raise InfeasibleError(f"no trial on {devices} devices took its steps", hint="raise `trial_time` in [limits], or leave the size out")
    return max(rows, key=lambda row: row.steps_per_s)


def _predicted(problem: Problem, measured: Mapping[int, TableRow], law: ScalingLaw | None) -> TableRow:
    """Return the prediction for a size, in the configuration that is most like the fastest one of the nearest measured size."""
    assert law is not None
    devices = problem.cluster.devices
    like = measured[min(measured, key=lambda other: abs(math.log(other / devices)))]
    noise = math.fsum(row.log_stddev for row in measured.values()) / len(measured)
    return TableRow(
        configuration=_most_like(problem, like.configuration),
        steps_per_s=1 / law.step_s(devices),
        log_stddev=math.hypot(law.log_error(devices), noise),
        memory_bytes=like.memory_bytes,
        source="predicted",
    )


def _most_like(problem: Problem, wanted: Configuration) -> Configuration:
    """Return the configuration with the fewest other values; among equals, the one with the nearest micro-batch."""
    candidates = problem.candidates()
    values = wanted.to_dict()

    def distance(configuration: Configuration) -> tuple[int, float]:
        others = sum(values.get(name) != value for name, value in configuration.to_dict().items() if name not in ("dp", "micro_batch"))
        return others, abs(math.log(configuration.micro_batch / wanted.micro_batch))

    return min((candidates.configuration(index) for index in range(len(candidates))), key=distance)


def origin_of(problem: Problem, measured: Sequence[Origin]) -> Origin:
    """Return the origin of a scale table from those of the tables of its measured sizes."""
    return Origin.of(
        problem,
        study=measured[0].study,
        method="active",
        complete=all(each.complete for each in measured),
        candidates=sum(each.candidates for each in measured),
        trials=sum(each.trials for each in measured),
        spent_s=sum(each.spent_s for each in measured),
        created_at=time.time(),
        command="oppa scale-table",
    )
