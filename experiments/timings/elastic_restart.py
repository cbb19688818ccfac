"""Measure the pause of a trainer that moves from one host of Slurm to two: with ranks that wait, against a cold restart.

In a cold restart the run is stopped on one host, and resumed on two. The process of oppa goes on, so its own start does not count.
"""

import functools
import statistics
import sys
import tempfile
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
BEGIN, STEPS, BATCH = "micro_batch=8,zero_stage=0", 50, 32


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


def elastic_restart(repeats: int) -> list[Section]:
    """Return the pauses as a table; raises EnvironmentLackingError without a Slurm."""
    pairs = _pairs(repeats)
    cold_s, warm_s = zip(*pairs, strict=True)
    ratios = [cold / warm for cold, warm in pairs]
    rows = list(zip(("cold, s", "ranks that wait, s", "ratio"), map(spread, (cold_s, warm_s, ratios)), strict=True))
    ratio = statistics.median(ratios)
    verdict = "reaches" if ratio >= BAR else "misses"
    text = f"From one host to two, {repeats} pairs in turn: {ratio:.2f} times as long after a cold restart, which {verdict} {BAR:g}."
    return [Section(title="Pause of an elastic job", text=text, columns=("restart", "median (min - max)"), rows=rows)]


def elastic_restart_figures(repeats: int) -> dict[str, Any]:
    """Return the pauses as JSON values, in seconds."""
    pairs = _pairs(repeats)
    ratios = [cold / warm for cold, warm in pairs]
    medians = {name: statistics.median(values) for name, values in zip(("cold_s", "prepared_s"), zip(*pairs, strict=True), strict=True)}
    return {"elastic_restart": {**medians, "ratio": statistics.median(ratios), "least_ratio": min(ratios), "pairs": pairs}}


@functools.cache
def _pairs(repeats: int) -> list[tuple[float, float]]:
    """Return pairs of a cold pause and one with ranks that wait, in seconds."""
    slurm.ask("sinfo", "--noheader")
    with tempfile.TemporaryDirectory(prefix="elastic-", dir=_shared()) as folder:
        numbers = iter(range(2 * repeats))
        return in_turn(lambda: _cold_s(Path(folder, str(next(numbers)))), lambda: _prepared_s(Path(folder, str(next(numbers)))), repeats)


def _shared() -> Path:
    """Return a folder of the checkout, which all hosts share."""
    folder = catalog.root() / "runs"
    folder.mkdir(exist_ok=True)
    return folder


def _cold_s(run: Path) -> float:
    _trained(run, hosts=1, callback=StopAfter(STEPS))
    return _pause_s(_trained(run, hosts=2, callback=StopAfter(STEPS)))


def _prepared_s(run: Path) -> float:
    return _pause_s(_trained(run, hosts=1, callback=_Resized(run)))


def _trained(run: Path, *, hosts: int, callback: StopAfter) -> TrainResult:
    settings = [f"cluster.hosts={hosts}", "cluster.devices_per_host=1", f"launcher.name={SLURM}", "train.samples=10000000"]
    settings += ["train.frozen=''", "limits.device_lock=false"]
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(catalog.root() / "examples" / "own_trainer.py")]
    command = [*line, "--micro-batch", "{micro_batch}", "--checkpoints", str(run / "trained")]
    job = catalog.root() / "examples" / "own_trainer.toml"
    result = api.train(job, BEGIN, run=run, settings=settings, command=command, callback=callback)
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
