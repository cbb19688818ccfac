"""Compare trainers under `oppa train` with the same training without changes, stops or oppa."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.libraries.lines import versions
from experiments.trainers.classifiers import ACCELERATE, DEEPSPEED, LIGHTNING
from experiments.trainers.example_run import ExampleRun
from experiments.trainers.extent import Extent
from experiments.trainers.integrations import FSDP2, TRANSFORMERS, TRANSFORMERS_ON_GPU, Integration
from experiments.trainers.statistics_cost import MOST_COST, Spread, StatisticsCost, median
from experiments.trainers.stop_after import StopAfter
from experiments.trainers.torchtitan_llama import TORCHTITAN
from oppa.control.training_session.result import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.report.record import Section
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

Tell = Callable[[str], None]
STEP_S, MOST_OVERHEAD = 0.2, 0.005
"""Seconds of the nominal step to which the client's cost is related, and the largest share of it."""
CLOSE = 1e-4
"""Largest difference of losses that are summed in another order."""
INTEGRATIONS = (TRANSFORMERS, FSDP2, ACCELERATE, LIGHTNING, DEEPSPEED, TORCHTITAN)
"""Trainers that are compared."""
STAGES = {(16, 0): 1.0, (32, 0): 0.9, (64, 0): 0.4, (64, 1): 0.8}
"""Steps per second, by batch and number of the layout, of a table whose largest batch is the fastest in the second layout.

They are far below measured ones, so that a restart pays within a run of seconds.
"""
RESTARTS = {(16, 0): 1.0, (32, 1): 0.9, (64, 0): 0.8}
"""Steps per second of a table in which each larger batch requires another layout; keys as in STAGES."""
LIVE = {(16, 1): 1.0, (32, 1): 0.9, (64, 1): 0.8}
"""Steps per second of a table in which the second layout has every batch; keys as in STAGES."""
MEASURED = (16, 32, 64)
"""Batches of the table that is measured in the first layout, from which the goodput policy chooses."""
STOPPED = 200_000
"""Samples of a run that is stopped after its restarts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerComparison:
    """Compares a trainer under oppa with itself."""

    live_changes: int
    """Changes of the batch between two steps."""
    restarts: int
    """Changes of layout by a restart."""
    own_changes: int | None
    """Changes of the batch by the goodput policy, from a measured table and the measured noise scale; None if it was not run."""
    loss_difference: float
    """Largest difference of losses from the same batches without oppa, on one process."""
    resumed_difference: float
    """`loss_difference` of a run that was stopped in mid-epoch, and resumed with another number of ranks and under FSDP2."""
    client_s: float
    """Seconds inside all calls of the client, divided by the steps of the run of `live_changes`."""
    late_pauses_s: tuple[float, ...]
    """Seconds from the request to leave to the first step in another layout, if the new ranks start after the old ones have left."""
    early_pauses_s: tuple[float, ...]
    """These seconds if the new ranks start while the old ones still train. Runs of both kinds alternate."""
    statistics: tuple[StatisticsCost, ...]
    seconds: float
    extent: Extent
    software: Mapping[str, str]
    """Versions of the libraries that the trainer ran on."""

    @property
    def client_overhead(self) -> float:
        """Return the share of a nominal step of `STEP_S` seconds that the client takes."""
        return self.client_s / STEP_S

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        own = {} if self.own_changes is None else {"goodput": self.own_changes}
        return {
            "changes": {"live": self.live_changes, "restarts": self.restarts, **own},
            "client_overhead": self.client_overhead,
            "restart_pause": _medians(late_s=self.late_pauses_s, early_s=self.early_pauses_s),
            "statistics_overhead": self.statistics[0].overhead,
            "statistics": [each.to_dict() for each in self.statistics],
            "loss_equal": self.loss_difference <= CLOSE,
            "resumed_equal": self.resumed_difference <= CLOSE,
            "seconds": self.seconds,
            "software": dict(self.software),
        }


Comparisons = Mapping[Integration, TrainerComparison]
Trained = tuple[ExampleRun, TrainResult, TrainResult]
"""A run whose batch changes, its result, and that of a run that was stopped and resumed."""


def compare(extent: Extent, tell: Tell) -> Comparisons:
    """Compare each trainer whose environment is there with itself, and report the steps."""
    return {each: _compared(each, extent, tell) for each in _present(extent, tell)}


def to_json(found: Comparisons) -> dict[str, Any]:
    """Return the comparisons as JSON values."""
    return {"integrations": {each.name: comparison.to_dict() for each, comparison in found.items()}}


def sections(found: Comparisons) -> list[Section]:
    """Return two tables for each trainer."""
    return [section for each, comparison in found.items() for section in _sections(each, comparison)]


def _present(extent: Extent, tell: Tell) -> Iterator[Integration]:
    """Yield the trainers whose environment is there, and report which are left out."""
    for each in (TRANSFORMERS_ON_GPU,) if extent.gpu else filter(lambda each: extent.includes(each.name), INTEGRATIONS):
        try:
            each.interpreter()
        except EnvironmentLackingError as lacking:
            tell(f"{each.name} is left out: {lacking.message}; {lacking.hint}")
        else:
            yield each


def _sections(integration: Integration, found: TrainerComparison) -> list[Section]:
    name, value = integration.layouts[1]
    rows = [
        ("changes of the batch between two steps, by stages", str(found.live_changes)),
        ("changes of batch and layout by a restart, by stages", str(found.restarts)),
    ]
    if found.own_changes is not None:
        rows.append(("changes of the batch by goodput, from a measured table", str(found.own_changes)))
    rows += [
        ("largest difference of losses from the same batches without oppa", f"{found.loss_difference:.1e}"),
        (f"the same after stops, {found.extent.places}, the last attempt with {name} = {value}", f"{found.resumed_difference:.1e}"),
        (f"client, share of a nominal step of {STEP_S * 1e3:g} ms", f"{found.client_overhead:.3%}"),
    ]
    if found.early_pauses_s:
        late_s, early_s = statistics.median(found.late_pauses_s), statistics.median(found.early_pauses_s)
        rows += [
            ("pause of a restart, new ranks started after the others have left", _seconds(found.late_pauses_s)),
            ("pause of a restart, new ranks started while the others train", _seconds(found.early_pauses_s)),
            ("ratio of both medians", f"{early_s / late_s:.2f}"),
        ]
    text = f"Losses count as equal up to {CLOSE:g}. The client may take {MOST_OVERHEAD:.1%} of a nominal step."
    text += f" That is {STEP_S * 1e3:g} ms, whatever the steps of the example take; the client's time is that inside its calls on rank 0."
    text += " Pauses: median, and least to most."
    text += f" The trainer ran on {', '.join(f'{name} {version}' for name, version in found.software.items())}."
    compared = Section(title=f"An own trainer: {integration.name}", text=text, columns=("figure", ">value"), rows=rows)
    return [compared, _statistics_section(integration, found)]


def _seconds(pauses_s: Sequence[float]) -> str:
    return f"{statistics.median(pauses_s):.2f} s ({min(pauses_s):.2f} to {max(pauses_s):.2f}, {len(pauses_s)} restarts)"


def _statistics_section(integration: Integration, found: TrainerComparison) -> Section:
    """Return the cost of gradient statistics as a table."""
    rows = []
    for each in found.statistics:
        costs = [_spread(values) for values in (each.of_all(each.cpu), each.of_all(each.wall), median(each.cpu))]
        rows.append((str(each.samples), f"{each.interval:.1f}", f"{each.step_s * 1e3:.0f} ms", *costs, str(len(each.cpu))))
    ranks, clock = ("one rank", "wall clock") if found.extent.gpu else ("two ranks", "CPU time")
    text = (
        f"One training of {ranks}, whose statistics choose the measured steps. Each of these is compared with the others up to the next "
        "measured one. The cost over all steps is that of a measured step over the interval. Costs are the median of the pairs, with its "
        f"95% bootstrap interval. The bar is {MOST_COST:.0%} in the first row, by the {clock}. The first {found.extent.settling} steps do "
        "not count, as the interval settles in them. A measured gradient is read once more, whatever the size of the micro-batch, so the "
        "cost is larger where a micro-batch has little work."
    )
    columns = (
        ">samples of a micro-batch",
        ">every n-th step",
        ">time of a step",
        ">cost, CPU time",
        ">cost, wall clock",
        ">cost of a measured step, CPU time",
        ">pairs",
    )
    return Section(title=f"Gradient statistics: {integration.name}", text=text, columns=columns, rows=rows)


def _spread(values: Spread) -> str:
    return "{:+.1%} ({:+.1%} to {:+.1%})".format(*values)


def _compared(integration: Integration, extent: Extent, tell: Tell) -> TrainerComparison:
    began_s, interpreter = time.monotonic(), integration.interpreter()
    with tempfile.TemporaryDirectory(prefix="oppa-trainers-") as name:
        folder, trained = Path(name), _trained_in_two if extent.has_few_starts else _trained
        changed, staged, resumed = trained(integration, folder, extent, tell)
        client_s = changed.client_s()
        chosen = None if extent.short or extent.gpu else _chosen(integration, folder, tell)
        tell(f"{integration.name}: pauses and the cost of statistics")
        measures_pauses = integration.early_start and not extent.short
        late_s, early_s = _pauses(integration, folder, extent.repeats) if measures_pauses else ((), ())
    difference = max(_difference(integration, _steps(each)) for each in (staged, chosen) if each is not None)
    return TrainerComparison(
        live_changes=_changes(staged, "rebatch"),
        restarts=_changes(staged, "start"),
        own_changes=None if chosen is None else _changes(chosen, "rebatch"),
        loss_difference=difference,
        resumed_difference=difference if resumed is staged else _difference(integration, _steps(resumed)),
        client_s=client_s,
        late_pauses_s=late_s,
        early_pauses_s=early_s,
        statistics=integration.statistics(extent, interpreter),
        seconds=time.monotonic() - began_s,
        extent=extent,
        software=versions(interpreter),
    )


def _trained(integration: Integration, folder: Path, extent: Extent, tell: Tell) -> Trained:
    """Train with changes of batch and layout; and train in three attempts, the second on one rank and the last in the other layout."""
    tell(f"{integration.name}: a run whose batch and layout change")
    late = ("--late-start",) if integration.early_start else ()  # so that the change of layout comes early in a short run
    changed = _example(integration, folder / "changed", extent, *late)
    staged = changed.trained(changed.begin(0) + ",global_batch=16", table=changed.table(STAGES), policy="stagewise")
    tell(f"{integration.name}: a run that stops twice")
    moved = _example(integration, folder / "moved", extent)
    moved.trained(moved.begin(0), callback=StopAfter(20), finished=False)
    moved.trained("micro_batch=8", devices=1, callback=StopAfter(20), finished=False)
    return changed, staged, moved.trained(moved.begin(1))


def _example(integration: Integration, folder: Path, extent: Extent, *words: str) -> ExampleRun:
    return ExampleRun(integration, folder, *words, samples=extent.samples(integration.samples), ranks=extent.ranks, gpu=extent.gpu)


def _trained_in_two(integration: Integration, folder: Path, extent: Extent, tell: Tell) -> Trained:
    """Train in two attempts, the second in the other layout and, on CPUs, on two ranks in place of one. There the batch changes."""
    tell(f"{integration.name}: a run that stops once, and whose batch changes")
    run = _example(integration, folder / "changed", extent)
    run.trained("micro_batch=8", devices=1, callback=StopAfter(10), finished=False)
    staged = run.trained(run.begin(1) + ",global_batch=16", table=run.table(LIVE), policy="stagewise")
    return run, staged, staged


def _chosen(integration: Integration, folder: Path, tell: Tell) -> TrainResult:
    """Measure a table of batches, and train with the batches that the goodput policy chooses from it."""
    tell(f"{integration.name}: a table, and a run whose batch follows the gradient noise scale")
    run = ExampleRun(integration, folder / "chosen")
    return run.trained(run.begin(0) + f",global_batch={MEASURED[0]}", table=run.measured(MEASURED), policy="goodput")


def _changes(result: TrainResult, phase: str) -> int:
    """Return the number of changes that had a phase: `rebatch` between two steps, or `start` of other ranks."""
    return sum(phase in line["seconds"] for line in result.lines if line["event"] == ledger.CHANGED)


def _medians(**values: Sequence[float]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in values.items() if each}


def _steps(result: TrainResult) -> list[Line]:
    return [line for line in result.lines if line["event"] == ledger.STEP]


def _difference(integration: Integration, steps: Sequence[Line]) -> float:
    return max(abs(float(line["loss"]) - loss) for line, loss in zip(steps, integration.losses(steps), strict=True))


def _pauses(integration: Integration, folder: Path, pairs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of pauses at restarts with late and with early starts, of runs that alternate."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for early in (False, True) if pair % 2 else (True, False):
            trainer = ExampleRun(integration, folder / f"pause-{pair}-{early}", *(() if early else ("--late-start",)), samples=STOPPED)
            begin, table = trainer.begin(0) + ",global_batch=16", trainer.table(RESTARTS)
            stop = StopAfter(1, attempt=len(RESTARTS))
            result = trainer.trained(begin, table=table, policy="stagewise", callback=stop, finished=False)
            changes = [line["seconds"] for line in result.lines if line["event"] == ledger.CHANGED]
            found[early] += [sum(each.values()) for each in changes if "start" in each]
    return tuple(found[False]), tuple(found[True])
