"""Write the page of measured and predicted pipelines: tables, and FlexTrain's figures 6 to 10 at this project's size."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pipelines.elastic import CHAINS, NEVER, REPLICAS, STAGES, Chain, differences, phases
from experiments.pipelines.elastic import MODEL as ELASTIC
from experiments.pipelines.elastic import STEPS as CHANGED_AFTER
from experiments.pipelines.run import (
    BALANCE,
    CPUS,
    HEAVY,
    LAYOUTS,
    MODEL,
    ORDERS,
    PERIOD_US,
    PROFILED,
    STEPS,
    Compared,
    Measured,
    Round,
    compared,
    passes_as_written_s,
    rank_correlation,
)
from oppa.pipeline.execution import execute
from oppa.pipeline.from_configuration import schedule_of, stages_of
from oppa.pipeline.prediction import modelled_s, predict, times
from oppa.pipeline.replication import Replication
from oppa.pipeline.scaling import ScaleCandidate, ScaledJob, candidates, fastest
from oppa.pipeline.stage_layout import balanced, evenly, written
from oppa.problem.configuration import Configuration
from oppa.report.figures import Axis, Series, lines, standalone
from oppa.report.inputs import Inputs
from oppa.report.record import Section, write_record

TITLE = "Pipelines, predicted and run"
DEVICES, SPEEDUP = Axis(label="devices"), Axis(label="speed-up over the profiled run")
MOST = 32
"""Largest number of devices for which predictions are drawn."""
SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v")


def to_json(measured: Measured) -> dict[str, Any]:
    """Return the result for `oppa bench pipelines --json`."""
    elastic, balance = measured.elastic, compared(measured.balance, BALANCE, HEAVY)
    layouts, orders = compared(measured.rounds, LAYOUTS), compared(measured.rounds, ORDERS)
    return {
        "rounds": len(measured.rounds),
        "step_time_error": _median_error(layouts),
        "memory_error": max(abs(row.memory_error) for row in (*layouts, *orders)),
        "rank_correlation": rank_correlation(orders),
        "layouts": [_plain(row) for row in layouts],
        "orders": [_plain(row) for row in orders],
        "balance": [_plain(row) for row in balance],
        "balance_speedup": _speedup(balance),
        "elastic": {name: {"loss_difference": _largest(chain, elastic), **phases(chain)} for name, chain in elastic.items()},
    }


def sections(measured: Measured) -> list[Section]:
    """Return the tables: layouts, schedules, stages of a heavy-ended model, the paper's formulas, and a job whose devices change."""
    rounds = measured.rounds
    return [_layouts(rounds), _orders(rounds), _balance(measured.balance), _as_written(rounds), _elastic(measured.elastic)]


def write_page(folder: Path, measured: Measured, inputs: Inputs | None = None) -> Path:
    """Write tables and figures; raises InputError if a file cannot be written."""
    figures = {name: standalone(svg) for name, svg in _figures(measured.rounds, measured.elastic).items()}
    return write_record(folder, TITLE, sections(measured), figures=figures, inputs=inputs)


def _layouts(rounds: Sequence[Round]) -> Section:
    rows = compared(rounds, LAYOUTS)
    return Section(
        title="Other pipelines, from one profile",
        text=f"Seconds per step of a model with {MODEL.layers} layers in batches of {LAYOUTS[0].global_batch}, on ranks with a quota of "
        f"{CPUS:g} cores each in periods of {PERIOD_US / 1000:g} ms. The first steps of `{PROFILED[0].id}` are profiled. There are "
        f"{len(rounds)} rounds with a profile each, and medians are over {STEPS} steps. The median error is {_median_error(rows):.1%}; "
        f"the largest error of memory is {max(abs(row.memory_error) for row in rows):.1%}.",
        columns=("configuration", ">measured", ">predicted", ">error", ">in rounds", ">memory", ">predicted", ">error"),
        rows=[_cells(row) for row in rows],
    )


def _orders(rounds: Sequence[Round]) -> Section:
    rows = sorted(compared(rounds, ORDERS), key=lambda row: row.predicted_s)
    return Section(
        title="Schedules of one pipeline, from the same profile",
        text=f"The pipeline has {ORDERS[0].pp} stages and {ORDERS[0].num_microbatches} micro-batches. The rank correlation (Spearman) of "
        f"predicted and measured times is {rank_correlation(rows):.2f}.",
        columns=("configuration", ">measured", ">predicted", ">error", ">in rounds", ">memory", ">predicted", ">error"),
        rows=[_cells(row) for row in rows],
    )


def _balance(rounds: Sequence[Round]) -> Section:
    rows = compared(rounds, BALANCE, HEAVY)
    profile = rounds[-1].profile
    in_layers = profile.costs[-1] / statistics.mean(profile.costs[1:-1])
    stages = [written(stages_of(configuration, HEAVY)) for configuration in BALANCE]
    by_cost = written(balanced(profile.costs, schedule_of(BALANCE[0]).shape)).replace("|", " ")
    return Section(
        title="Stages of a heavy-ended model",
        text=f"The model has {HEAVY.layers} layers and an output projection that takes as long as {in_layers:.1f} of them. Balanced stages "
        f"share operations; shares by the newest profile's times are {by_cost}. The measured speed-up is {_speedup(rows):.2f}.",
        columns=("stages", ">measured", ">predicted", ">error", ">in rounds", ">memory", ">predicted", ">error"),
        rows=[[layout.replace("|", " "), *_cells(row)[1:]] for layout, row in zip(stages, rows, strict=True)],
    )


def _speedup(rows: Sequence[Compared]) -> float:
    """Return the measured speed-up of balanced stages over even ones."""
    evenly, balanced_ones = rows
    return evenly.measured_s / balanced_ones.measured_s


def _as_written(rounds: Sequence[Round]) -> Section:
    """Compare the paper's formulas with propagated times, on the newest profile."""
    profile, rows = rounds[-1].profile, []
    for configuration in LAYOUTS:
        schedule = schedule_of(configuration)
        executed = execute(schedule, times(profile, evenly(profile.chain, schedule.shape.stages), split=schedule.split))
        rows.append(
            (
                configuration.id,
                f"{predict(profile, schedule, Replication(dp=configuration.dp)).passes_s:.2f} s",
                f"{modelled_s(profile, pp=configuration.pp, micro_batches=configuration.num_microbatches):.2f} s",
                f"{passes_as_written_s(executed):.1f} s",
            )
        )
    return Section(
        title="The paper's formulas",
        text="The table compares the seconds of a step's passes. `propagated`: each pass ends its duration after its last predecessor. "
        "Equation 5 has chunks of one layer each. Equations 7 and 8 as written add up absolute end times.",
        columns=("configuration", ">propagated", ">equation 5", ">equations 7 and 8 as written"),
        rows=rows,
    )


def _cells(row: Compared) -> list[object]:
    low, high = min(row.errors), max(row.errors)
    mebi = 2**20
    return [
        row.configuration.id,
        f"{row.measured_s:.2f} s",
        f"{row.predicted_s:.2f} s",
        f"{row.error:+.1%}",
        f"{low:+.0%} to {high:+.0%}",
        f"{row.measured_bytes / mebi:.1f} MiB",
        f"{row.predicted_bytes / mebi:.1f} MiB",
        f"{row.memory_error:+.1%}",
    ]


def _plain(row: Compared) -> dict[str, Any]:
    return {
        "configuration": row.configuration.id,
        "measured_s": row.measured_s,
        "predicted_s": row.predicted_s,
        "error": row.error,
        "memory_error": row.memory_error,
    }


def _median_error(rows: Sequence[Compared]) -> float:
    return statistics.median(abs(error) for row in rows for error in row.errors)


def _elastic(elastic: Mapping[str, Chain]) -> Section:
    names = list(phases(elastic[NEVER]))
    rows = []
    for name, chain in elastic.items():
        took = phases(chain)
        way = " ".join(f"{dp * pp}" for dp, pp in CHAINS[name])
        rows.append(
            (name, way, f"{_largest(chain, elastic):.1e}", *(f"{took[each]:.2f} s" for each in names), f"{sum(took.values()):.2f} s")
        )
    return Section(
        title="A job whose devices change",
        text=f"A model of {ELASTIC.layers} layers trains {CHANGED_AFTER} steps on each number of devices, each time from a checkpoint. "
        "`losses` is the largest relative difference from the job that never changed. Seconds are medians over the changes.",
        columns=("what changes", "devices", ">losses", *(f">{name}" for name in names), ">total"),
        rows=rows,
    )


def _largest(chain: Chain, elastic: Mapping[str, Chain]) -> float:
    return max(map(abs, differences(chain, elastic[NEVER])))


def _accuracy(elastic: Mapping[str, Chain]) -> str:
    """Draw the difference of each job's losses from those of the job that never changes (figure 6)."""
    drawn = [
        Series(name=f"{name} change", x=list(range(len(chain.losses))), y=differences(chain, elastic[NEVER]))
        for name, chain in elastic.items()
        if name != NEVER
    ]
    return lines({"": drawn}, x=Axis(label="step"), y=Axis(label="loss / the unchanged job's - 1"), description="Loss differences")


def _overhead(elastic: Mapping[str, Chain]) -> str:
    """Draw the seconds that a job pauses, for each change (figure 10)."""
    panels = {}
    for name in (STAGES, REPLICAS):
        counts = list(range(1, len(CHAINS[name])))
        pauses = elastic[name].standing_s
        panels[f"{name} change"] = [Series(name=phase, x=counts, y=[change[phase] for change in pauses]) for phase in pauses[0]]
    return lines(panels, x=Axis(label="change"), y=Axis(label="seconds"), description="Seconds that a job pauses at each change")


def _figures(rounds: Sequence[Round], elastic: Mapping[str, Chain]) -> dict[str, str]:
    """Return SVG by file name."""
    of_elastic = {"accuracy.svg": _accuracy(elastic), "overhead.svg": _overhead(elastic)}
    return {**of_elastic, "speedups.svg": _speedups(rounds), "methods.svg": _methods(rounds), "configurations.svg": _configurations(rounds)}


def _speedups(rounds: Sequence[Round]) -> str:
    """Draw predicted and measured speed-ups of stages alone, and of replicas and stages (figure 7)."""
    rows = {row.configuration: row for row in compared(rounds, LAYOUTS)}
    base = PROFILED[0]
    measured_s = statistics.median(each.profile.step_s for each in rounds)
    predicted_s = statistics.median(predict(each.profile, schedule_of(base)).step_s for each in rounds)
    known = {base: (measured_s, predicted_s)} | {configuration: (row.measured_s, row.predicted_s) for configuration, row in rows.items()}
    panels = {}
    for title, those in (("stages alone", [each for each in known if each.dp == 1]), ("replicas and stages", _best(known))):
        drawn = sorted(those, key=lambda each: each.devices)
        panels[title] = [
            Series(name=name, x=[each.devices for each in drawn], y=[of[at] / known[each][at] for each in drawn])
            for name, at, of in (("measured", 0, (measured_s, predicted_s)), ("predicted", 1, (measured_s, predicted_s)))
        ]
    return lines(panels, x=DEVICES, y=SPEEDUP, description="Speed-ups of more devices, predicted and measured")


def _best(known: dict[Configuration, tuple[float, float]]) -> list[Configuration]:
    """Return the configuration with the shortest predicted step, for each number of devices."""
    counts = sorted({each.devices for each in known})
    return [min((each for each in known if each.devices == count), key=lambda each: known[each][1]) for count in counts]


def _methods(rounds: Sequence[Round]) -> str:
    """Draw speed-ups that the profile predicts, and those that equation 5 predicts (figure 8)."""
    job = _job(rounds)
    panels = {}
    for title, replicas in (("stages alone", [1]), ("replicas and stages", None)):
        best = [(count, way) for count in range(1, MOST + 1) if (way := fastest(job, _ways(job, count, replicas))) is not None]
        now = next(way for count, way in best if count == PROFILED[0].devices)
        panels[title] = [
            Series(name="by the profile", x=[count for count, _ in best], y=[_over(now, way) for _, way in best]),
            Series(name="by equation 5", x=[count for count, _ in best], y=[now.modelled_s / way.modelled_s for _, way in best]),
        ]
    return lines(panels, x=DEVICES, y=SPEEDUP, description="Predicted speed-ups by the profile and by the model")


def _configurations(rounds: Sequence[Round]) -> str:
    """Draw the predicted speed-ups of all feasible configurations (figure 9)."""
    job = _job(rounds)
    ways = [(count, way) for count in range(1, MOST + 1) for way in _ways(job, count, None)]
    now = fastest(job, [way for _, way in ways if (way.dp, way.pp) == (1, PROFILED[0].pp)])
    assert now is not None
    drawn = []
    for dp in sorted({way.dp for _, way in ways}):
        best: dict[int, float] = {}
        for count, way in ways:
            if way.dp == dp:
                best[count] = max(best.get(count, 0.0), _over(now, way))
        drawn.append(Series(name=f"dp = {dp}", x=list(best), y=list(best.values())))
    return lines({"": drawn}, x=DEVICES, y=SPEEDUP, description="Predicted speed-ups of all configurations, the best schedule of each")


def _job(rounds: Sequence[Round]) -> ScaledJob:
    return ScaledJob(profile=rounds[-1].profile, global_batch=PROFILED[0].global_batch)


def _ways(job: ScaledJob, devices: int, replicas: Sequence[int] | None) -> list[ScaleCandidate]:
    return list(candidates(job, devices, replicas=replicas, schedules=SCHEDULES))


def _over(now: ScaleCandidate, way: ScaleCandidate) -> float:
    return now.prediction.step_s / way.prediction.step_s
