"""Compare trainers under `oppa train` with the same training without changes, stops or oppa."""

import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.trainers import transformers_statistics
from experiments.trainers.integrations import FSDP2, TRANSFORMERS, Integration
from experiments.trainers.stop_after import StopAfter
from oppa import api, catalog
from oppa.control.own_trainer.contract import LEFT
from oppa.control.training_session import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.report.record import Section
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import ATTEMPTS
from oppa.trials.trial_folder import MEASUREMENTS, SPEC, write_json

STEP_S, MOST_OVERHEAD = 0.2, 0.005
"""Seconds of the step to which the client's cost is related, and the largest share of it."""
CLOSE = 1e-4
"""Largest difference of losses that are summed in another order."""
INTEGRATIONS = (TRANSFORMERS, FSDP2)
"""Trainers that are compared."""
STAGES = {(16, 0): 1.0, (32, 0): 0.9, (64, 0): 0.4, (64, 1): 0.8}
"""Steps per second, by batch and number of the layout, of a table whose largest batch is the fastest in the second layout.

They are far below measured ones, so that a restart pays within a run of seconds.
"""
UNSURE = 1.0
"""Standard deviation of their logarithms: step times of one row then say little about the others."""


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
    statistics_costs: tuple[float, ...]
    """Relative cost of gradient statistics, of pairs of steps with and without them."""
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
            "statistics_overhead": statistics.median(self.statistics_costs),
            "loss_equal": self.loss_difference <= CLOSE,
            "resumed_equal": self.resumed_difference <= CLOSE,
            "seconds": self.seconds,
        }


def trainer_figures(repeats: int) -> dict[str, Any]:
    """Return the comparisons as JSON values."""
    return {"integrations": {each.name: _compared(each, repeats).to_dict() for each in INTEGRATIONS}}


def trainers(repeats: int) -> list[Section]:
    """Return a table for each trainer."""
    return [_section(each, _compared(each, repeats)) for each in INTEGRATIONS]


def _section(integration: Integration, found: TrainerComparison) -> Section:
    costs, (name, value) = sorted(found.statistics_costs), integration.layouts[1]
    rows = [
        ("changes of the batch between two steps", str(found.live_changes)),
        ("changes of layout by a restart", str(found.restarts)),
        ("largest difference of losses from the same batches without oppa", f"{found.loss_difference:.1e}"),
        (f"the same after stops, on 2, 1 and 2 ranks, the last ones with {name} = {value}", f"{found.resumed_difference:.1e}"),
        (f"client, share of a step of {STEP_S * 1e3:g} ms", f"{found.client_overhead:.3%}"),
        ("gradient statistics, relative cost", f"{statistics.median(costs):+.1%} ({costs[0]:+.1%} to {costs[-1]:+.1%})"),
    ]
    text = f"Losses count as equal up to {CLOSE:g}. The client may take {MOST_OVERHEAD:.1%} of a step."
    return Section(title=f"An own trainer: {integration.name}", text=text, columns=("figure", ">value"), rows=rows)


@functools.cache
def _compared(integration: Integration, repeats: int) -> TrainerComparison:
    began_s = time.monotonic()
    first, second = (f"micro_batch=8,{name}={value}" for name, value in integration.layouts)
    with tempfile.TemporaryDirectory(prefix="oppa-trainers-") as folder:
        changed = _Trainer(integration, Path(folder) / "changed")
        staged = changed.trained(first + ",global_batch=16", table=changed.table(), policy="stagewise")
        steps, client_s = _steps(staged), changed.client_s()
        moved = _Trainer(integration, Path(folder) / "moved")
        moved.trained(first, callback=StopAfter(20), finished=False)
        moved.trained(first, devices=1, callback=StopAfter(20), finished=False)
        resumed = _steps(moved.trained(second))
        costs = _statistics_costs(integration, max(2, repeats), Path(folder) / "timed")
    restarts = sum("start" in line["seconds"] for line in staged.lines if line["event"] == ledger.CHANGED)
    live = sum("rebatch" in line["seconds"] for line in staged.lines if line["event"] == ledger.CHANGED)
    return TrainerComparison(
        live_changes=live,
        restarts=restarts,
        loss_difference=_difference(integration, steps),
        resumed_difference=_difference(integration, resumed),
        client_s=client_s,
        statistics_costs=tuple(costs),
        seconds=time.monotonic() - began_s,
    )


def _steps(result: TrainResult) -> list[Line]:
    return [line for line in result.lines if line["event"] == ledger.STEP]


def _difference(integration: Integration, steps: Sequence[Line]) -> float:
    return max(abs(float(line["loss"]) - loss) for line, loss in zip(steps, integration.losses(steps), strict=True))


class _Trainer:
    """Runs the example of a trainer in a folder."""

    def __init__(self, integration: Integration, folder: Path) -> None:
        example = catalog.root() / "examples" / integration.example
        self._folder, self._job, self._layouts = folder, example.with_suffix(".toml"), integration.layouts
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{devices_per_host}"]
        self._command = [*argv, str(example.with_suffix(".py")), *integration.words]
        self._settings = [f"train.samples={integration.samples}", "train.advise=false", "train.frozen=''", "train.damping=2"]
        self._settings.append("limits.device_lock=false")  # losses and the client's own seconds do not depend on other trials

    def trained(self, setting: str, *, devices: int = 2, finished: bool = True, **options: Any) -> TrainResult:
        """Train on; raise EnvironmentLackingError unless it ends as expected."""
        settings = [*self._settings, f"cluster.devices_per_host={devices}"]
        result = api.train(self._job, setting, run=self._folder, settings=settings, command=self._command, **options)
        if result.outcome.ending.value != ("finished" if finished else "stopped"):
            cause = f"the example ended as {result.outcome.ending.value}: {result.outcome.last.cause}"
            raise EnvironmentLackingError(cause, hint=f"read {result.outcome.folder / 'stderr.log'}; run `oppa doctor`")
        return result

    def client_s(self) -> float:
        """Return the seconds of `run.step` in each step of the run's last attempt."""
        last = max((self._folder / ATTEMPTS).iterdir())
        steps = sum(1 for _ in (last / MEASUREMENTS).open())
        return float(json.loads((last / LEFT).read_text())["client_s"]) / steps

    def table(self) -> Path:
        """Write the table of STAGES, and return its folder."""
        problem = load_job(self._job, settings=self._settings, argv=self._command)
        rows = tuple(
            TableRow(
                configuration=Configuration(dp=2, global_batch=batch, micro_batch=8, **dict([self._layouts[layout]])),
                steps_per_s=rate,
                log_stddev=UNSURE,
                memory_bytes=None,
                source="measured",
                trials=(1,),
            )
            for (batch, layout), rate in STAGES.items()
        )
        facts: dict[str, Any] = {"study": "given", "method": "exhaustive", "complete": True, "candidates": len(rows), "trials": len(rows)}
        folder = self._folder.with_name("table")
        Table(rows=rows, origin=Origin.of(problem, **facts, spent_s=1.0, created_at=time.time())).write(folder)
        return folder


def _statistics_costs(integration: Integration, pairs: int, folder: Path) -> list[float]:
    """Return the relative cost of gradient statistics, for each pair of steps with and without them."""
    program = Path(__file__).with_name(integration.statistics)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    paths = [str(catalog.root()), str(catalog.client()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if integration is TRANSFORMERS:
        configuration = Configuration(dp=2, global_batch=64, micro_batch=8).to_dict()
        folder.mkdir()
        write_json(folder / SPEC, {"configuration": configuration, "steps": 2 * pairs * transformers_statistics.BLOCK})
        words, environment = [*words, "--output", str(folder)], {**environment, "OPPA_TRIAL": str(folder)}
    else:
        words = [*words, str(pairs)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise EnvironmentLackingError(f"the ranks that time statistics failed: {done.stderr[-2000:]}", hint="run `oppa doctor`")
    if integration is TRANSFORMERS:
        return transformers_statistics.costs([json.loads(line)["step_time_s"] for line in (folder / MEASUREMENTS).open()])
    return [float(each) for each in json.loads(done.stdout.splitlines()[-1])]
