"""Measure the pause of a trainer that moves from one host of Slurm to two: with ranks that wait, against a cold restart.

In a cold restart the run is stopped on one host, and resumed on two. The process of oppa goes on, so its own start does not count.
"""

import dataclasses
import functools
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.timings.interleaved import in_turn, spread
from experiments.trainers.stop_after import StopAfter
from oppa import api, catalog
from oppa.control.training_session.result import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.launchers.provider import SLURM
from oppa.problem.configuration import Configuration
from oppa.report.record import Section
from oppa.training.run import ledger
from oppa.training.run.resize import ResizeRequest

BAR = 3.0
"""Least ratio of the pauses that is to be reached."""
STEPS, BATCH = 50, 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    """Describes one of the examples of users' trainers."""

    begin: str
    """Configuration in which it begins."""
    folder: str
    """Option that names the folder of its checkpoints."""


TRAINERS = {
    "own": _Trainer(begin="micro_batch=8,zero_stage=0", folder="--checkpoints"),
    "transformers": _Trainer(begin="micro_batch=8,recompute=none", folder="--output"),
}
"""A loop of one's own around DDP, and Transformers' `Trainer`."""


class _Resized(StopAfter):
    """Requests two hosts after some steps, and stops after some steps on them."""

    def __init__(self, run: Path) -> None:
        super().__init__(STEPS, attempt=2)
        self._run, self._seen = run, 0

    def stepped(self, measurement: object) -> None:
        """Count a step, and make the request once."""
        super().stepped(measurement)
        self._seen += 1
        if self._seen == STEPS:
            ResizeRequest(hosts=2, configuration=Configuration(dp=2, global_batch=BATCH, micro_batch=8)).write(self._run)


def elastic_restart(repeats: int, trainers: Sequence[str]) -> list[Section]:
    """Return the pauses as a table for each trainer; raises EnvironmentLackingError without a Slurm."""
    return [_section(name, repeats) for name in trainers]


def _section(name: str, repeats: int) -> Section:
    pairs = _pairs(name, repeats)
    cold_s, warm_s = zip(*pairs, strict=True)
    ratios = [cold / warm for cold, warm in pairs]
    rows = list(zip(("cold, s", "ranks that wait, s", "ratio"), map(spread, (cold_s, warm_s, ratios)), strict=True))
    ratio = statistics.median(ratios)
    verdict = "reaches" if ratio >= BAR else "misses"
    text = f"From one host to two, {repeats} pairs in turn: {ratio:.2f} times as long after a cold restart, which {verdict} {BAR:g}."
    return Section(title=f"Pause of an elastic job: {name}", text=text, columns=("restart", "median (min - max)"), rows=rows)


def elastic_restart_figures(repeats: int, trainers: Sequence[str]) -> dict[str, Any]:
    """Return the pauses of each trainer as JSON values, in seconds."""
    return {"elastic_restart": {name: _figures(_pairs(name, repeats)) for name in trainers}}


def _figures(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    ratios = [cold / warm for cold, warm in pairs]
    medians = {name: statistics.median(values) for name, values in zip(("cold_s", "prepared_s"), zip(*pairs, strict=True), strict=True)}
    return {**medians, "ratio": statistics.median(ratios), "least_ratio": min(ratios), "pairs": pairs}


@functools.cache
def _pairs(name: str, repeats: int) -> list[tuple[float, float]]:
    """Return pairs of a cold pause and one with ranks that wait, in seconds."""
    slurm.ask("sinfo", "--noheader")
    with tempfile.TemporaryDirectory(prefix="elastic-", dir=_shared()) as folder:
        numbers = iter(range(2 * repeats))
        return in_turn(
            lambda: _cold_s(name, Path(folder, str(next(numbers)))), lambda: _prepared_s(name, Path(folder, str(next(numbers)))), repeats
        )


def _shared() -> Path:
    """Return a folder of the checkout, which all hosts share."""
    folder = catalog.root() / "runs"
    folder.mkdir(exist_ok=True)
    return folder


def _cold_s(name: str, run: Path) -> float:
    _trained(name, run, hosts=1, callback=StopAfter(STEPS))
    return _pause_s(_trained(name, run, hosts=2, callback=StopAfter(STEPS)))


def _prepared_s(name: str, run: Path) -> float:
    return _pause_s(_trained(name, run, hosts=1, callback=_Resized(run)))


def _trained(name: str, run: Path, *, hosts: int, callback: StopAfter) -> TrainResult:
    trainer, example = TRAINERS[name], catalog.root() / "examples" / f"{name}_trainer.py"
    settings = [f"cluster.hosts={hosts}", "cluster.devices_per_host=1", f"launcher.name={SLURM}", "train.samples=10000000"]
    settings += ["train.frozen=''", "limits.device_lock=false"]
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(example)]
    command = [*line, "--micro-batch", "{micro_batch}", trainer.folder, str(run / "trained")]
    result = api.train(example.with_suffix(".toml"), trainer.begin, run=run, settings=settings, command=command, callback=callback)
    if result.outcome.ending.value != "stopped":
        cause = f"the example ended as {result.outcome.ending.value}: {result.outcome.last.cause}"
        raise EnvironmentLackingError(cause, hint=f"read {result.outcome.folder / 'stderr.log'}; two nodes of Slurm have to be idle")
    return result


def _pause_s(result: TrainResult) -> float:
    """Return the seconds between the last step on one host and the beginning of the first step on two."""
    ledger.require_whole(result.lines)
    steps = [line for line in result.lines if line["event"] == ledger.STEP]
    (change,) = ((a, b) for a, b in pairwise(steps) if a["configuration"] != b["configuration"])
    return float(change[1]["time"] - change[0]["time"] - change[1]["step_time_s"])
