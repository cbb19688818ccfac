"""Draw a study's charts: how the best was found, and predicted against measured throughput and memory."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import accumulate

from oppa.report import interactive
from oppa.report.figures import Axis, Series, scatter, timeline
from oppa.report.study import rate_of
from oppa.study import Prediction, Trial
from oppa.study.records import MEASURED, SEARCH, VERIFICATION
from oppa.tuning.calibration import track_record
from oppa.units import GIB, MIB, format_seconds

PAUSE_S = 120.0
"""Seconds without a trial beyond which they are a pause between sessions; the time axis leaves it out."""
WIDE = 10.0
"""Factor between throughputs beyond which their axis is logarithmic."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Holds a figure, its caption, and the values from which a script draws it again (see `interactive`)."""

    svg: str
    caption: str
    data: interactive.Values


def best_so_far(trials: Sequence[Trial], *, unit: str = "steps/s", simulated: bool = False) -> list[Chart]:
    """Draw trials by outcome with the incumbent, over time and over the number of trials; empty if no trial was feasible.

    Args:
        simulated: The trials were simulated, so each begins on the time axis when the last one ends.
    """
    shown = [trial for trial in trials if trial.purpose != VERIFICATION]
    feasible = [trial for trial in shown if trial.feasible]
    if not feasible:
        return []
    ends_s, left_out_s = (one_by_one(shown), 0.0) if simulated else elapsed(shown)
    numbers = {trial.id: float(place) for place, trial in enumerate(shown, start=1)}
    best = max(feasible, key=rate_of)
    pauses = f" The time axis omits pauses of {format_seconds(left_out_s)}." if left_out_s else ""
    fastest = f"Fastest in a single trial: {best.configuration.id}"
    return [
        _timeline(shown, ends_s, unit, "seconds since the start", f"{fastest}, after {format_seconds(ends_s[best.id])}.{pauses}"),
        _timeline(shown, numbers, unit, "trials", f"{fastest}, trial {numbers[best.id]:.0f} of {len(shown)}."),
    ]


def one_by_one(trials: Sequence[Trial]) -> dict[int, float]:
    """Return the end of each trial by id, in seconds of a clock that runs only during trials."""
    return dict(zip((trial.id for trial in trials), accumulate(trial.seconds for trial in trials), strict=True))


def elapsed(trials: Sequence[Trial]) -> tuple[dict[int, float], float]:
    """Return the end of each trial by id, in seconds from the start of the first, and the seconds of pauses that are left out."""
    begun = sorted(trials, key=lambda trial: (trial.started_at, trial.id))
    clock, left_out, ends = begun[0].started_at, 0.0, dict[int, float]()
    for trial in begun:
        if (gap := trial.started_at - clock) > PAUSE_S:
            left_out += gap
        end = trial.started_at + trial.seconds
        clock = max(clock, end)
        ends[trial.id] = end - begun[0].started_at - left_out
    return ends, left_out


def throughput(trials: Sequence[Trial], *, unit: str = "steps/s") -> Chart | None:
    """Draw predicted against measured throughput of the search; None without a prediction."""
    record = track_record(trials)
    if record is None:
        return None
    known = [(t, t.prediction) for t in trials if t.purpose == SEARCH and t.prediction and t.steps_per_s]
    hits = [(trial, predicted) for trial, predicted in known if predicted.covers(rate_of(trial))]
    misses = [(trial, predicted) for trial, predicted in known if not predicted.covers(rate_of(trial))]
    summary = f"{record.inside} of {record.measured} measured throughputs are within their predicted 90% interval"
    return _scattered(
        [_predicted(name, chosen) for name, chosen in (("within the interval", hits), ("outside", misses)) if chosen],
        ("measured, " + unit, "predicted, " + unit),
        label=f"Predicted against measured throughput: {summary}",
        caption=f"{summary} (calibrated predictions have 90%); typical error {record.typical_error:.0%}.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Counts the search trials with a prediction of memory, by prediction and result: a confusion matrix."""

    fit_ran: int
    fit_lost: int
    unfit_ran: int
    unfit_lost: int
    chart: Chart

    @property
    def right(self) -> int:
        """Return the number of trials that ended as predicted."""
        return self.fit_ran + self.unfit_lost

    @property
    def total(self) -> int:
        """Return the number of all trials."""
        return self.right + self.fit_lost + self.unfit_ran


def memory(trials: Sequence[Trial], usable_bytes: float) -> MemoryForecast | None:
    """Draw predicted against measured memory; None without a prediction that a trial could check.

    A trial that ran out of memory is drawn at the limit; it needed at least that much.
    """
    known = [t for t in trials if t.purpose == SEARCH and t.prediction and t.prediction.memory_bytes]
    ran = [t for t in known if t.outcome in MEASURED and t.memory_bytes]
    lost = [t for t in known if t.outcome == "out_of_memory"]
    if not ran and not lost:
        return None
    fits = {t.id: t.prediction.fits(usable_bytes) for t in known if t.prediction}
    fit_ran, fit_lost = sum(fits[t.id] for t in ran), sum(fits[t.id] for t in lost)
    at_least = [dataclasses.replace(t, memory_bytes=round(usable_bytes)) for t in lost]
    unit, unit_bytes = ("GiB", GIB) if usable_bytes >= GIB else ("MiB", MIB)
    chart = _scattered(
        [_needed(name, chosen, unit_bytes) for name, chosen in (("ran", ran), ("out of memory", at_least)) if chosen],
        (f"measured peak, {unit}", f"predicted peak, {unit}"),
        label=f"Predicted against measured peak memory of {len(ran) + len(lost)} trials",
        caption="The dashed line is the usable memory of a device. "
        "Trials that ran out of memory are drawn there, because their peak is unknown.",
        limit=usable_bytes / unit_bytes,
    )
    return MemoryForecast(
        fit_ran=fit_ran,
        fit_lost=fit_lost,
        unfit_ran=len(ran) - fit_ran,
        unfit_lost=len(lost) - fit_lost,
        chart=chart,
    )


def _scattered(drawn: Sequence[Series], labels: tuple[str, str], *, label: str, caption: str, limit: float | None = None) -> Chart:
    x, y = (Axis(label=name, log=True) for name in labels)
    svg = scatter(drawn, x=x, y=y, description=label, limit=limit)
    return Chart(svg=svg, caption=caption, data=interactive.scatter(drawn, x=x, y=y, label=label, limit=limit))


def _timeline(trials: Sequence[Trial], at: Mapping[int, float], unit: str, label: str, caption: str) -> Chart:
    begun = sorted(trials, key=lambda trial: at[trial.id])
    outcomes = sorted({trial.outcome for trial in trials})  # `completed` comes first, so it is on top
    measured = [_at(name, [t for t in begun if t.outcome == name and t.steps_per_s], at) for name in outcomes]
    lost = [_at(name, [t for t in begun if t.outcome == name and not t.steps_per_s], at) for name in outcomes]
    seen, unseen, best = [each for each in measured if each.x], [each for each in lost if each.x], _incumbent(begun, at)
    rates = [rate for series in seen for rate in series.y]
    x, y = Axis(label=label), Axis(label=unit, log=max(rates) > WIDE * min(rates))
    described = f"Throughput of each trial and the best so far, over {label}. {caption}"
    svg = timeline(seen, {each.name: each.x for each in unseen}, best, x=x, y=y, description=described)
    return Chart(svg=svg, caption=caption, data=interactive.timeline(seen, unseen, best, x=x, y=y, label=described))


def _at(outcome: str, trials: Sequence[Trial], at: Mapping[int, float]) -> Series:
    """Return trials of one outcome; those without a measurement have throughput 0."""
    y, notes = [rate_of(trial) for trial in trials], _notes(trials)
    return Series(name=outcome.replace("_", " "), x=[at[trial.id] for trial in trials], y=y, notes=notes)


def _notes(trials: Sequence[Trial]) -> list[str]:
    return [f"trial {trial.id}, {trial.configuration.id}" for trial in trials]


def _incumbent(begun: Sequence[Trial], at: Mapping[int, float]) -> Series:
    """Return the best throughput so far, from the first feasible trial to the last trial."""
    x, y = list[float](), list[float]()
    for trial in begun:
        if trial.feasible and (not y or rate_of(trial) > y[-1]):
            x.append(at[trial.id])
            y.append(rate_of(trial))
    return Series(name="best so far", x=[*x, at[begun[-1].id]], y=[*y, y[-1]])


def _predicted(name: str, pairs: Sequence[tuple[Trial, Prediction]]) -> Series:
    ends = [predicted.interval for _, predicted in pairs]
    return Series(
        name=name,
        x=[rate_of(trial) for trial, _ in pairs],
        y=[predicted.steps_per_s for _, predicted in pairs],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        notes=_notes([trial for trial, _ in pairs]),
    )


def _needed(name: str, trials: Sequence[Trial], unit_bytes: float) -> Series:
    predictions = [trial.prediction for trial in trials if trial.prediction]
    centres = [(each.memory_bytes or 0) / unit_bytes for each in predictions]
    ends = [each.memory_interval or (each.memory_bytes or 0,) * 2 for each in predictions]
    return Series(
        name=name,
        x=[(trial.memory_bytes or 0) / unit_bytes for trial in trials],
        y=centres,
        low=[low / unit_bytes for low, _ in ends],
        high=[high / unit_bytes for _, high in ends],
        notes=_notes(trials),
    )
