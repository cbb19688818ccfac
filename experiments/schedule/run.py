"""Compare pipeline schedules at profiled stage times: named schedules, and the search at two memory limits, next to published figures."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.simulator.run import FILES, KNOWN_SCHEDULES, LAYERS_AND_ENDS, SCHEDULES, STAGE_TIMES
from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError
from oppa.pipeline import schedules
from oppa.pipeline.costs_file import ProfiledStages, read_profiled
from oppa.pipeline.execution import Times
from oppa.pipeline.graph import PipelineShape
from oppa.pipeline.memory import Footprint
from oppa.pipeline.search.exact import prove
from oppa.pipeline.search.heuristic import heuristic
from oppa.pipeline.search.joint import search, shapes
from oppa.pipeline.search.makespan import makespan
from oppa.pipeline.search.task import ScheduleTask
from oppa.random_streams import stream
from oppa.report.record import Section

SEARCH = "search"
LIMITS = (1.0, 2.0)
"""Memory limits of the search, in multiples of 1F1B's peak."""
SEVERAL = 2
"""Model chunks per rank in interleaved schedules, if the number of layers is unknown."""
PUBLISHED: dict[tuple[str, float | None], str] = {
    **{(ours, None): theirs for theirs, ours in KNOWN_SCHEDULES.items()},
    ("zb-v", None): "ZB-V",
    (SEARCH, 1.0): "ZB-1p",
    (SEARCH, 2.0): "ZB-2p",
}
"""The paper's name of each schedule and memory limit."""
PROVING_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """Holds the result of one schedule for the pipeline of one model."""

    model: str
    pp: int
    microbatches: int
    schedule: str
    memory_limit: float | None
    """Limit in multiples of 1F1B's peak, or None for a schedule without a limit."""
    bubble_rate: float
    peak_memory: float
    """Peak memory of the rank that holds most, in activations of one micro-batch; that of 1F1B is `pp`."""
    seconds: float
    """Seconds to compute the schedule."""


def measure(times: Path | None, tell: Callable[[str], None]) -> list[ScheduleRow]:
    """Evaluate every schedule, and the search at each limit, for each row of a file of stage times.

    Args:
        times: File of stage times; the published ones by default.
        tell: Receives the progress.

    Raises:
        InputError: the file holds no stage times.
        EnvironmentLackingError: no file is given, and the published one is missing.
    """
    if not times and (lacking := published.missing({STAGE_TIMES: FILES[STAGE_TIMES]})):
        raise EnvironmentLackingError(
            f"`{catalog.data_folder()}` lacks {', '.join(lacking)}", hint="use --times with a file, or name its folder in OPPA_DATA"
        )
    profiled = read_profiled(times or catalog.data_folder() / STAGE_TIMES)
    rows: list[ScheduleRow] = []
    for each in profiled:
        tell(f"{each.model or 'a model'}, {each.costs.ranks} stages, {each.micro_batches} micro-batches")
        rows += _named(each, tell)
        rows += (_searched(each, limit) for limit in LIMITS)
    return rows


def _named(profiled: ProfiledStages, tell: Callable[[str], None]) -> Iterator[ScheduleRow]:
    costs, layers = profiled.costs, LAYERS_AND_ENDS.get(profiled.model, 0)
    several = layers // costs.ranks or SEVERAL
    for name in schedules.SCHEDULES:
        chunks = 2 if name in schedules.FOLDED else several if name.startswith("interleaved") else 1
        begun = time.perf_counter()
        try:
            found = schedules.build_schedule(name, ranks=costs.ranks, micro_batches=profiled.micro_batches, chunks=chunks)
        except InputError as error:
            tell(f"no {name}: {error}")
            continue
        executed, peak = costs.executed(found)
        yield _row(profiled, name, None, costs.bubble_rate(executed), max(peak), time.perf_counter() - begun)


def _searched(profiled: ProfiledStages, limit: float) -> ScheduleRow:
    begun = time.perf_counter()
    costs = profiled.costs
    found = search(costs, shapes(ranks=costs.ranks, micro_batches=profiled.micro_batches, chunks=[1]), limit=limit * costs.ranks)
    seconds = time.perf_counter() - begun
    return _row(profiled, SEARCH, limit, costs.bubble_rate(found.execution), max(found.peak_memory), seconds)


def _row(profiled: ProfiledStages, name: str, limit: float | None, bubble_rate: float, peak: float, seconds: float) -> ScheduleRow:
    return ScheduleRow(
        model=profiled.model,
        pp=profiled.costs.ranks,
        microbatches=profiled.micro_batches,
        schedule=name,
        memory_limit=limit,
        bubble_rate=round(bubble_rate, 6),
        peak_memory=round(peak, 4),
        seconds=round(seconds, 4),
    )


def to_json(rows: Sequence[ScheduleRow], gaps: "Sequence[Gap]") -> dict[str, Any]:
    """Return the result for `oppa bench schedule --json`."""
    return {"rows": [dataclasses.asdict(row) for row in rows], **({"gaps": [dataclasses.asdict(each) for each in gaps]} if gaps else {})}


def sections(rows: Sequence[ScheduleRow], gaps: "Sequence[Gap]") -> list[Section]:
    """Return a table of bubble rates next to published ones, and one of the heuristic's gaps."""
    return [_rates(rows), *([_gaps(gaps)] if gaps else [])]


def _rates(rows: Sequence[ScheduleRow]) -> Section:
    known = _published()
    lines = []
    for row in rows:
        name = PUBLISHED.get((row.schedule, row.memory_limit))
        theirs = known.get((row.model, row.pp, row.microbatches, name))
        lines.append(
            (
                f"{row.model}, {row.pp} x {row.microbatches}",
                row.schedule + (f", {row.memory_limit:g} of 1F1B's memory" if row.memory_limit else ""),
                f"{row.bubble_rate:.2%}",
                "" if theirs is None else f"{name} {theirs:.2%}",
                f"{row.peak_memory:g}",
                f"{row.seconds:.2g}",
            )
        )
    return Section(
        title="Bubble rates at profiled stage times",
        text="Sizes are stages x micro-batches. Peak memory counts activations of a micro-batch; 1F1B holds one for each stage. "
        f"Published: {'Qi et al. 2024, tables 5 and 8' if known else f'SKIPPED, `{catalog.data_folder() / SCHEDULES}` does not exist'}.",
        columns=("model", "schedule", ">bubble", "published", ">peak memory", ">seconds"),
        rows=lines,
    )


def _published() -> dict[tuple[str, int, int, str | None], float]:
    path = catalog.data_folder() / SCHEDULES
    if not path.exists():
        return {}
    rates = pd.read_csv(path).dropna(subset="bubble_rate").to_dict("records")
    return {(row["model"], row["pp"], row["microbatches"], row["schedule"]): row["bubble_rate"] for row in rates}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Compares the heuristic's schedule of one small instance with the bound that constraint programming proves."""

    seed: int
    ranks: int
    micro_batches: int
    gap: float
    """Makespan of the heuristic over the proven lower bound, minus 1."""
    proven: bool
    """The solver proved the optimum in time; otherwise the true gap may be smaller."""


def instance(seed: int) -> ScheduleTask:
    """Return a random small pipeline: 2 to 4 uneven stages, 2 to 8 micro-batches, and memory limits per rank or one for all."""
    draws = stream(seed, "instance")
    ranks, count = int(draws.integers(2, 5)), int(draws.integers(2, 9))
    forward, backward = (draws.integers(10, 41, ranks).astype(float).tolist() for _ in range(2))
    weight = draws.integers(5, 31, ranks).astype(float).tolist()
    limits = draws.choice([1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0], ranks if draws.random() < 0.5 else 1)
    return ScheduleTask(
        shape=PipelineShape(ranks=ranks, micro_batches=count),
        times=Times(forward_s=forward, backward_s=backward, weight_s=weight, transfer_s=[float(draws.integers(0, 7))] * (ranks - 1)),
        footprint=Footprint(held=[1.0] * ranks, for_weights=[0.5] * ranks),
        limits=np.broadcast_to(limits, ranks).tolist(),
    )


def gap(seed: int) -> Gap:
    """Return the heuristic's gap on an instance.

    Raises:
        ImportError: OR-Tools is not installed.
    """
    task = instance(seed)
    found = heuristic(task)
    assert all(task.fits(rank, codes) for rank, codes in enumerate(found.lists))
    proof = prove(task, found.lists, seconds=PROVING_S)
    best_s = min(makespan(task, proof.lists).span_s, found.makespan.span_s)
    return Gap(
        seed=seed,
        ranks=task.shape.ranks,
        micro_batches=task.shape.micro_batches,
        gap=found.makespan.span_s / proof.least_s - 1,
        proven=proof.proven or best_s <= proof.least_s * (1 + 1e-9),
    )


def _gaps(gaps: Sequence[Gap]) -> Section:
    proven = [each for each in gaps if each.proven]
    longer = sorted((each for each in proven if each.gap > 1e-9), key=lambda each: -each.gap)
    return Section(
        title="The heuristic, compared with proofs",
        text=f"{len(gaps)} small pipelines have random times and limits; {len(proven)} were proved within {PROVING_S:g} s by CP-SAT. "
        f"The heuristic found {len(proven) - len(longer)} of these optimal schedules; the table has the others.",
        columns=("instance", ">stages", ">micro-batches", ">over the shortest"),
        rows=[(each.seed, each.ranks, each.micro_batches, f"{each.gap:.2%}") for each in longer],
    )
