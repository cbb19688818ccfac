"""Compare trainers under `oppa train` with the same training without changes, stops or oppa."""

import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.trainers.classifiers import ACCELERATE, DEEPSPEED, LIGHTNING
from experiments.trainers.example_run import ExampleRun
from experiments.trainers.integrations import FSDP2, TRANSFORMERS, Integration
from experiments.trainers.statistics_cost import MOST_COST, SETTLING, Spread, StatisticsCost, median
from experiments.trainers.stop_after import StopAfter
from experiments.trainers.torchtitan_llama import TORCHTITAN
from oppa.control.training_session.result import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.report.record import Section
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

STEP_S, MOST_OVERHEAD = 0.2, 0.005
"""Seconds of the step to which the client's cost is related, and the largest share of it."""
CLOSE = 1e-4
"""Largest difference of losses that are summed in another order."""
INTEGRATIONS = (TRANSFORMERS, FSDP2, ACCELERATE, LIGHTNING, DEEPSPEED, TORCHTITAN)
"""Trainers that are compared."""
STAGES = {(16, 0): 1.0, (32, 0): 0.9, (64, 0): 0.4, (64, 1): 0.8}
"""Steps per second, by batch and number of the layout, of a table whose largest batch is the fastest in the second layout.

They are far below measured ones, so that a restart pays within a run of seconds.
"""
RESTARTS = {(16, 0): 1.0, (32, 1): 0.9, (64, 0): 0.8}
"""The same of a table in which each larger batch requires another layout."""
STOPPED = 200_000
"""Samples of a run that is stopped after its restarts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerComparison:
    """Compares a trainer under oppa with itself."""

    live_changes: int
    """Changes of the batch between two steps."""
    restarts: int
    """Changes of layout by a restart."""
    loss_difference: float
    """Largest difference of losses from the same batches without oppa, on one process."""
    resumed_difference: float
    """The same of a run that was stopped in mid-epoch, and resumed with another number of ranks and under FSDP2."""
    client_s: float
    """Seconds of `run.step` in each step of the run of `live_changes`."""
    late_pauses_s: tuple[float, ...]
    """Seconds from the request to leave to the first step in another layout, whose ranks start after the ones before have left."""
    early_pauses_s: tuple[float, ...]
    """The same if they start while the ones before still train; each run of these follows or precedes one of the others."""
    statistics: tuple[StatisticsCost, ...]
    seconds: float

    @property
    def client_overhead(self) -> float:
        """Return the share of a step of `STEP_S` seconds that the client takes."""
        return self.client_s / STEP_S

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "changes": {"live": self.live_changes, "restarts": self.restarts},
            "client_overhead": self.client_overhead,
            "restart_pause": _medians(late_s=self.late_pauses_s, early_s=self.early_pauses_s),
            "statistics_overhead": self.statistics[0].overhead,
            "statistics": [each.to_dict() for each in self.statistics],
            "loss_equal": self.loss_difference <= CLOSE,
            "resumed_equal": self.resumed_difference <= CLOSE,
            "seconds": self.seconds,
        }


def trainer_figures(repeats: int) -> dict[str, Any]:
    """Return the comparisons as JSON values."""
    return {"integrations": {each.name: _compared(each, repeats).to_dict() for each in _present()}}


def trainers(repeats: int) -> list[Section]:
    """Return two tables for each trainer."""
    return [section for each in _present() for section in _sections(each, _compared(each, repeats))]


def _present() -> list[Integration]:
    """Return the trainers whose environment is there; the others are named on stderr."""
    found = []
    for each in INTEGRATIONS:
        try:
            each.interpreter()
            found.append(each)
        except EnvironmentLackingError as lacking:
            _tell(f"{each.name} is left out: {lacking.message}; {lacking.hint}")
    return found


def _tell(words: str) -> None:
    sys.stderr.write(words + "\n")


def _sections(integration: Integration, found: TrainerComparison) -> list[Section]:
    name, value = integration.layouts[1]
    rows = [
        ("changes of the batch between two steps, by the controller", str(found.live_changes)),
        ("changes of batch and layout by a restart, by the controller", str(found.restarts)),
        ("largest difference of losses from the same batches without oppa", f"{found.loss_difference:.1e}"),
        (f"the same after stops, on 2, 1 and 2 ranks, the last ones with {name} = {value}", f"{found.resumed_difference:.1e}"),
        (f"client, share of a step of {STEP_S * 1e3:g} ms", f"{found.client_overhead:.3%}"),
    ]
    if found.early_pauses_s:
        late_s, early_s = statistics.median(found.late_pauses_s), statistics.median(found.early_pauses_s)
        rows += [
            ("pause of a restart, new ranks started after the others have left", _seconds(found.late_pauses_s)),
            ("pause of a restart, new ranks started while the others train", _seconds(found.early_pauses_s)),
            ("ratio of both medians", f"{early_s / late_s:.2f}"),
        ]
    text = f"Losses count as equal up to {CLOSE:g}. The client may take {MOST_OVERHEAD:.1%} of a step. Pauses: median, and least to most."
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
    text = (
        "One training of two ranks, whose statistics choose the measured steps. Each of these is compared with the others up to the next "
        "measured one. The cost over all steps is that of a measured step over the interval. Costs are the median of the pairs, with its "
        f"95% bootstrap interval. The bar is {MOST_COST:.0%} in the first row. The first {SETTLING} steps do not count, as the interval "
        "settles in them. A measured gradient is read once more, whatever the size of the micro-batch, so the cost is larger where a "
        "micro-batch has little work."
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


@functools.cache
def _compared(integration: Integration, repeats: int) -> TrainerComparison:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oppa-trainers-") as folder:
        _tell(f"{integration.name}: a run whose batch and layout change")
        late = ("--late-start",) if integration.early_start else ()  # so that the change of layout comes early in a short run
        changed = ExampleRun(integration, Path(folder) / "changed", *late)
        staged = changed.trained(changed.begin(0) + ",global_batch=16", table=changed.table(STAGES), policy="stagewise")
        steps, client_s = _steps(staged), changed.client_s()
        _tell(f"{integration.name}: a run that stops twice")
        moved = ExampleRun(integration, Path(folder) / "moved")
        moved.trained(moved.begin(0), callback=StopAfter(20), finished=False)
        moved.trained("micro_batch=8", devices=1, callback=StopAfter(20), finished=False)
        resumed = _steps(moved.trained(moved.begin(1)))
        _tell(f"{integration.name}: pauses and the cost of statistics")
        late_s, early_s = _pauses(integration, Path(folder), repeats) if integration.early_start else ((), ())
    restarts = sum("start" in line["seconds"] for line in staged.lines if line["event"] == ledger.CHANGED)
    live = sum("rebatch" in line["seconds"] for line in staged.lines if line["event"] == ledger.CHANGED)
    return TrainerComparison(
        live_changes=live,
        restarts=restarts,
        loss_difference=_difference(integration, steps),
        resumed_difference=_difference(integration, resumed),
        client_s=client_s,
        late_pauses_s=late_s,
        early_pauses_s=early_s,
        statistics=integration.statistics(repeats),
        seconds=time.monotonic() - began_s,
    )


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
