"""Render a training run as one self-contained HTML page: its course, its changes with their reasons, and its speed.

All data come from the run's ledger, and from the table that its configurations are chosen from, in the run's folder (`PROFILED`).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.control.own_trainer.advice import Advice
from oppa.control.own_trainer.run_book import ADVISED, HELD_BACK, WITHDRAWN
from oppa.problem.configuration import Configuration
from oppa.problem.describe import job
from oppa.report import interactive
from oppa.report.charts import Chart
from oppa.report.figures import Axis, Series, lines
from oppa.report.page import environment, head
from oppa.report.record import Section
from oppa.table import Table, TableRow
from oppa.table.refinement import together
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import PROFILED, RunSpec
from oppa.training.run.step_times import observations
from oppa.units import format_batch, format_number, format_seconds, format_uncertain

POINTS = 2000
"""Largest number of points of a curve, evenly spaced among all steps."""
SMOOTHED = 20
"""Number of last steps whose mean loss a point of the curve shows."""


def render(folder: Path) -> str:
    """Return the page; the same run gives the same text. Raises RunError if the folder holds no run."""
    run, events = RunSpec.read(folder), ledger.standing(ledger.read(folder))
    steps, validated = ([line for line in events if line["event"] == event] for event in (ledger.STEP, ledger.VALIDATED))
    table = Table.read(folder / PROFILED) if (folder / PROFILED).exists() else None
    facts = {
        **head(),
        "title": run.problem.name,
        "kind": "a run by oppa",
        "about": [job(run.problem, {line["global_batch"] for line in steps} or {run.configuration.global_batch}), _ending(events, steps)],
        "headings": ("Progress", "Curves"),
        "facts": [*_facts(run, steps, validated), *_advised(events)] if steps else [],
        "charts": _charts(steps, validated) if steps else [],
        "sections": [_changes(events), *_hosts(events), *_advice(events), _speeds(events, table)] if steps else [],
    }
    return environment().get_template("sections.html.j2").render(facts)


def _ending(events: Sequence[Line], steps: Sequence[Line]) -> str:
    if not steps:
        return "The run has not taken a step yet."
    words = {True: "training is complete", False: "training was stopped; the same command resumes it"}
    ended = words[events[-1]["finished"]] if events[-1]["event"] == ledger.ENDED else "training is running, or its process was killed"
    attempts = sum(line["event"] == ledger.STARTED for line in events)
    return f"{ended}, {attempts} {'attempt' if attempts == 1 else 'attempts'}"


def _facts(run: RunSpec, steps: Sequence[Line], validated: Sequence[Line]) -> list[tuple[str, str]]:
    last, run_options = steps[-1], run.problem.run_options
    total = f" of {run_options.samples:,}" if run_options.samples else ""
    losses = [line["loss"] for line in steps[-SMOOTHED:] if line["loss"] is not None]
    found = [
        ("steps", f"{len(steps):,}"),
        ("samples", f"{last['samples'][1]:,}{total}"),
        (
            "time",
            f"{format_seconds(last['elapsed_s'])}, {format_seconds(math.fsum(line['step_time_s'] for line in steps))} of this in steps",
        ),
        ("configuration", f"{last['configuration']}, {format_batch(last['global_batch'], last.get('local_batches', ()))}"),
    ]
    if last["learning_rate"] is not None:
        found.append(("learning rate", f"{last['learning_rate']:.3g}"))
    if losses:
        found.append(("loss", f"{math.fsum(losses) / len(losses):.4f}, the mean of the last {len(losses)} steps"))
    if held_out := [line["loss"] for line in validated if line["loss"] is not None]:
        found.append(("held-out loss", f"{held_out[-1]:.4f}; the lowest is {min(held_out):.4f}"))
    if last["noise_scale"] is not None:
        known = f"{format_number(last['noise_scale'])} sequences" if _has_noise(last) else last["health"].replace("_", " ")
        found.append(("noise scale", known))
    return found


def _has_noise(step: Line) -> bool:
    """Return whether the estimate of the noise scale after a step is reliable."""
    return step["noise_scale"] is not None and step["health"] == "healthy"


def _charts(steps: Sequence[Line], validated: Sequence[Line]) -> list[Chart]:
    """Return charts of loss, of batch and noise scale, and of speed, over the run's elapsed time."""
    stride = math.ceil(len(steps) / POINTS)
    chosen = steps[::stride]
    loss = Series(name="loss", x=[line["elapsed_s"] for line in chosen], y=_smoothed(steps)[::stride])
    losses = [loss]
    if validated:
        held_out = [math.nan if line["loss"] is None else line["loss"] for line in validated]
        losses.append(Series(name="held out", x=[line["elapsed_s"] for line in validated], y=held_out))
    sizes = [Series(name="global batch", x=loss.x, y=[float(line["global_batch"]) for line in chosen])]
    noise, shown = [line["noise_scale"] if _has_noise(line) else math.nan for line in chosen], "Global batch over time, in sequences"
    if not all(map(math.isnan, noise)):
        sizes.append(Series(name="noise scale", x=loss.x, y=noise))
        shown = "Global batch and gradient noise scale over time, in sequences; the noise scale is drawn where it is known reliably"
    layouts = dict.fromkeys(line["configuration"] for line in chosen)
    speeds = [_speed(chosen, configuration) for configuration in layouts]
    return [
        _chart(losses, Axis(label="loss"), f"Loss over time, the mean of {SMOOTHED} steps"),
        _chart(sizes, Axis(label="sequences", log=True), shown, steps=True),
        _chart(speeds, Axis(label="sequences/s"), "Sequences per second over time, by configuration"),
    ]


def _chart(drawn: Sequence[Series], y: Axis, caption: str, *, steps: bool = False) -> Chart:
    x = Axis(label="seconds")
    svg = lines({"": drawn}, x=x, y=y, description=caption, steps=steps)
    return Chart(svg=svg, caption=caption, data=interactive.lines(drawn, x=x, y=y, label=caption, steps=steps))


def _smoothed(steps: Sequence[Line]) -> list[float]:
    """Return for each step the mean loss of the last SMOOTHED steps."""
    found, window = list[float](), list[float]()
    for line in steps:
        window = [*window, math.nan if line["loss"] is None else line["loss"]][-SMOOTHED:]
        finite = [loss for loss in window if not math.isnan(loss)]
        found.append(math.fsum(finite) / len(finite) if finite else math.nan)
    return found


def _speed(steps: Sequence[Line], configuration: str) -> Series:
    """Return the speed of the run in this configuration, with gaps for other configurations."""
    speeds = [line["global_batch"] / line["step_time_s"] if line["configuration"] == configuration else math.nan for line in steps]
    return Series(name=configuration, x=[line["elapsed_s"] for line in steps], y=speeds)


def _changes(events: Sequence[Line]) -> Section:
    """Return the section on the changes of batch and layout, and their reasons."""
    shown = (ledger.CHANGED, ledger.ROLLED_BACK, ledger.UNDONE, ledger.REFUSED, HELD_BACK)
    rows = [
        (
            line["step"],
            f"{line['samples']:,}",
            line["event"].replace("_", " "),
            _named(line["before"]),
            _named(line["after"], line.get("local_batches", ())),
            format_seconds(math.fsum(line["seconds"].values())) if line["seconds"] else "",
            _worth(line.get("weighed") or {}),
            line.get("failure") or line.get("reason") or "",
        )
        for line in events
        if line["event"] in shown
    ]
    restarts = any("start" in line.get("seconds", ()) for line in events if line["event"] in shown)
    changes = (
        "The batch changes between two steps, and the layout by a restart."
        if restarts
        else "Batch sizes and layouts change between two steps."
    )
    text = changes if rows else "The configuration did not change."
    return Section(title="Changes", text=text, columns=(">step", ">samples", "what", "from", "to", ">took", ">goodput", "why"), rows=rows)


def _hosts(events: Sequence[Line]) -> list[Section]:
    """Return the section on the hosts of the attempts, with a row whenever they change; none if they are not known."""
    named = itertools.groupby((line for line in events if line.get("hosts")), key=lambda line: line["hosts"])
    rows = [(next(lines)["step"], len(hosts), ", ".join(hosts)) for hosts, lines in named]
    text = "Each row has the hosts from a step on."
    return [Section(title="Hosts", text=text, columns=(">step", ">hosts", "names"), rows=rows)] if rows else []


def _advised(events: Sequence[Line]) -> list[tuple[str, str]]:
    """Return the row of progress that states what all advice would have been worth; empty without advice."""
    advice = Advice.of(events)
    return [("advice", f"{_named(advice.last.to_dict())}: {advice.worth}; nothing was changed")] if advice else []


def _advice(events: Sequence[Line]) -> list[Section]:
    """Return the section on decisions that were not followed, a row for each that differs from the one before; none without advice."""
    noted = (line for line in events if line["event"] in (ADVISED, WITHDRAWN, ledger.STARTED))
    pieces = itertools.groupby(noted, key=lambda line: (line["event"], line.get("before"), line.get("after")))
    rows = [_piece(list(lines)) for (event, *_), lines in pieces if event == ADVISED]
    text = "The policy would have made these changes. Goodput and reason are those of the last time."
    columns = (">step", ">last step", ">times", "from", "to", ">goodput", "why")
    return [Section(title="Advice that was not followed", text=text, columns=columns, rows=rows)] if rows else []


def _piece(lines: Sequence[Line]) -> tuple[object, ...]:
    """Return the row of one decision that was advised in several lines."""
    first, last = lines[0], lines[-1]
    named = _named(last["before"]), _named(last["after"], last.get("local_batches", ()))
    return first["step"], last["step"], len(lines), *named, _worth(last["weighed"] or {}), last["reason"]


def _worth(weighed: Mapping[str, Any]) -> str:
    """Return the expected goodput before and after a change, and of the table's best configuration."""
    options = [weighed.get("current"), weighed.get("chosen"), *(weighed.get("best") or [])[:1]]
    before, after, best = [format_number(each["goodput"]) if each else "–" for each in [*options, None, None, None][:3]]
    return f"{before} → {after} (best {best})" if before != "–" or after != "–" else ""


def _named(values: dict[str, object], local_batches: Sequence[int] = ()) -> str:
    configuration = Configuration.from_dict(values)
    return f"{configuration.id}, {format_batch(configuration.global_batch, local_batches)}"


def _speeds(events: Sequence[Line], table: Table | None) -> Section:
    """Return the section that compares the run's step times with the table's, and names the table's trials."""
    seen = observations(events)
    counts = {each.configuration: sum(other.steps for other in seen if other.configuration == each.configuration) for each in seen}
    rows_of = {row.configuration: row for row in table.rows} if table else {}
    rows = [
        (
            f"{configuration.id}, batch {configuration.global_batch}",
            f"{counts[configuration]:,}",
            _time(math.exp(-own.mean), math.sqrt(own.variance)),
            *(_of_table(rows_of.get(configuration), own.mean) if table else ()),
        )
        for configuration, own in together(seen).items()
    ]
    own_columns = ("configuration", ">steps", ">step time")
    if table is None:
        return Section(title="Step times", text="The run has no table to compare them with.", columns=own_columns, rows=rows)
    text = f"The table is from the study {table.origin.study}, which has these trials. A difference above 0 means slower training."
    columns = (*own_columns, ">in the table", ">difference", "known", "trials")
    return Section(title="Step times, compared with the table", text=text, columns=columns, rows=rows)


def _of_table(row: TableRow | None, log_steps_per_s: float) -> tuple[str, str, str, str]:
    if row is None:
        return "–", "–", "not in the table", ""
    difference = row.steps_per_s / math.exp(log_steps_per_s) - 1
    trials = ", ".join(map(str, row.trials))
    return _time(1 / row.steps_per_s, row.log_stddev), f"{difference:+.1%}", row.source, trials


def _time(seconds: float, relative: float) -> str:
    """Return milliseconds with one standard deviation, as text."""
    return f"{format_uncertain(seconds * 1e3, seconds * 1e3 * relative)} ms"
