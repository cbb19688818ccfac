"""Measure a layout change in process against a restart, which saves a checkpoint, ends all processes, starts new ones and loads.

Both ways continue from the same training state, in turn, and must arrive at the same state to the last bit. Each begins after a step of a
trained model and ends when the next step can begin. A phase ends when its last rank has ended it.

    in process    stage, release, regroup, rebuild, load
    restart       save, end, start (interpreters, imports, process groups), build, load
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.rank_pool import BEGIN, PoolAnswers, PoolRequest, RankPool, phases_of, words_of
from oppa.errors import MeasurementError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.presets import PRESETS
from oppa.report.record import Section
from oppa.units import format_bytes

MODEL = dataclasses.replace(PRESETS["tiny-16m"], seq_len=32)
STATE_BYTES_PER_WEIGHT = 12
"""Bytes of a weight and its two moments, in float32."""

IN_PROCESS, COLD, WARM = "in_process", "cold", "warm"
WAYS = {IN_PROCESS: "in process", COLD: "cold restart", WARM: "warm restart"}
"""Names of the ways in tables."""

Change = tuple[Configuration, Configuration]
Phases = Mapping[str, float]
"""Seconds by phase, in order."""


def _layout(**degrees: int) -> Configuration:
    return Configuration(**{"dp": 1, **degrees}, global_batch=4, micro_batch=1)  # type: ignore[arg-type]


CHANGES: tuple[Change, ...] = (
    (_layout(dp=4), _layout(dp=2, pp=2)),
    (_layout(dp=2, pp=2), _layout(tp=2, pp=2)),
    (_layout(tp=2, pp=2), _layout(dp=4)),
    (_layout(dp=4, zero_stage=3), _layout(dp=2, tp=2)),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """Holds the phases of one layout change, done in each way: `in_process`, and by a restart, `cold` or `warm`."""

    ways: Mapping[str, Phases]

    def seconds(self, way: str) -> float:
        """Return the seconds of all phases together."""
        return sum(self.ways[way].values())

    def speedup(self, way: str) -> float:
        """Return the seconds of a restart over those of the change in process."""
        return self.seconds(way) / self.seconds(IN_PROCESS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Holds repeated measurements of one layout change."""

    change: str
    times: Sequence[Once]

    def speedups(self, way: str = COLD) -> list[float]:
        """Return the seconds of a restart over those of the change in process, one value per repeat."""
        return [once.speedup(way) for once in self.times]

    def median(self, way: str = COLD) -> float:
        """Return the median speed-up."""
        return statistics.median(self.speedups(way))

    def seconds(self, way: str) -> list[float]:
        """Return the seconds of all phases together, one value per repeat."""
        return [once.seconds(way) for once in self.times]

    def phases(self, way: str) -> dict[str, float]:
        """Return the median seconds of each phase."""
        return {name: statistics.median(once.ways[way][name] for once in self.times) for name in self.times[0].ways[way]}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        seconds = {way: {"seconds": self.seconds(way), "phases": self.phases(way)} for way in WAYS}
        return {"change": self.change, **seconds, **{f"speedup_{way}": self.speedups(way) for way in (COLD, WARM)}}


def speedups(repeats: int, tell: Callable[[str], None], changes: Sequence[Change] = CHANGES, model: Model = MODEL) -> list[Speedup]:
    """Measure each layout change `repeats` times; raises EnvironmentLackingError if ranks fail."""
    with RankPool() as pool:
        found = []
        for change in changes:
            words, times = " → ".join(map(words_of, change)), []
            for number in range(repeats):
                tell(f"a change in process, and by restarts: {words}, {number + 1} of {repeats}")
                times.append(once(pool, change, model, cold_first=number % 2 == 0))
            found.append(Speedup(change=words, times=times))
        return found


def once(pool: RankPool, change: Change, model: Model, *, cold_first: bool) -> Once:
    """Train, save, and change the layout in process; then restart from the checkpoint in both ways.

    Raises:
        MeasurementError: a way ends in a different state.
    """
    request = PoolRequest(program="change", model=model, layouts=change, checkpoint=str(pool.folder / "checkpoint"))
    changed = pool.run(request)
    marks = {what: [answer[what] for answer in changed.answers] for what in ("saving", "changing")}
    begin_s = {what: min(rank[BEGIN] for rank in ranks) for what, ranks in marks.items()}
    # Ranks hash their state before they leave, which is not counted; the parent records when the last one has ended.
    end_s = changed.ended_s - max(answer["left_s"] for answer in changed.answers)
    saved = phases_of(marks["saving"], begin_s["saving"]) | {"end": end_s}
    restarts = {}
    for way in (COLD, WARM) if cold_first else (WARM, COLD):
        ran = pool.run(dataclasses.replace(request, program="restart", cold=way == COLD))
        require_same(whole(changed, "before"), whole(ran, "after"))
        restarts[way] = saved | phases_of([answer["restarting"] for answer in ran.answers], ran.started_s)
    require_same(whole(changed, "before"), whole(changed, "after"))
    _remove(Path(request.checkpoint))
    return Once(ways={IN_PROCESS: phases_of(marks["changing"], begin_s["changing"]), **restarts})


def whole(ran: PoolAnswers, when: str) -> dict[str, str]:
    """Return the digests of all ranks together; raises MeasurementError if two ranks have different values of one tensor slice."""
    found: dict[str, str] = {}
    for answer in ran.answers:
        for name, digest in answer[when].items():
            if found.setdefault(name, digest) != digest:
                raise MeasurementError(f"ranks hold different values of `{name}`", hint="report this error of oppa")
    return found


def require_same(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise MeasurementError unless both states are the same to the last bit."""
    if before != after:
        other = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        raise MeasurementError(
            f"the state differs after the change in {len(other)} tensors, first in `{other[0]}`", hint="report this error of oppa"
        )


def sections(found: Sequence[Speedup], model: Model = MODEL) -> list[Section]:
    """Return a table of speed-ups and a table of phases."""
    return [_speedups(found, model), _phases(found)]


def _speedups(found: Sequence[Speedup], model: Model) -> Section:
    slowest = min(found, key=Speedup.median)
    warm = min(found, key=lambda each: each.median(WARM))
    rows = [
        (each.change, _ms(each, IN_PROCESS), *(cell for way in (COLD, WARM) for cell in (_ms(each, way), _against(each, way))))
        for each in found
    ]
    state = format_bytes(model.parameter_count * STATE_BYTES_PER_WEIGHT)
    ranks, times = CHANGES[0][0].devices, len(found[0].times)
    text = (
        f"{ranks} ranks on gloo change {state} of weights and moments, {times} times each way in turn; figures are medians (min - max). "
        "A restart saves a durable checkpoint, ends the ranks, starts new ones, builds and loads. A cold restart uses new interpreters, a "
        "warm one forks of a process that has imported everything. The state is bitwise equal each way. A change in process is at least "
        f"{slowest.median():.1f} times as fast as a cold restart ({slowest.change}), and {warm.median(WARM):.1f} times as fast as a warm "
        f"one ({warm.change})."
    )
    columns = ("change", ">in process, ms", ">cold, ms", ">cold / in process", ">warm, ms", ">warm / in process")
    return Section(title="A change of layout, in process and by a restart", text=text, columns=columns, rows=rows)


def _ms(each: Speedup, way: str) -> str:
    return f"{statistics.median(each.seconds(way)) * 1e3:.0f}"


def _against(each: Speedup, way: str) -> str:
    ratios = each.speedups(way)
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} - {max(ratios):.1f})"


def _phases(found: Sequence[Speedup]) -> Section:
    rows = [
        (
            each.change if way == IN_PROCESS else "",
            name,
            ", ".join(f"{phase} {seconds * 1e3:.0f}" for phase, seconds in each.phases(way).items()),
        )
        for each in found
        for way, name in WAYS.items()
    ]
    return Section(title="Time by phase", text="Figures are medians in ms.", columns=("change", "way", "phases"), rows=rows)


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
