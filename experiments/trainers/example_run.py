"""Run the example of a trainer under `oppa train`, in a folder of its own."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.stated_table import stated_table
from experiments.trainers.integrations import Integration
from oppa import api, catalog
from oppa.control.own_trainer.contract import LEFT
from oppa.control.training_session.result import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.table import TableRow
from oppa.training.run.run_folder import ATTEMPTS
from oppa.trials.trial_folder import MEASUREMENTS

UNSURE = 1.0
"""Standard deviation of the logarithm of a table's step times: those of one row are then little evidence of the others."""


class ExampleRun:
    """Runs the example of a trainer in a folder.

    Args:
        folder: Folder of the run.
        words: Further arguments of the program.
        samples: Samples of the training; None: those of the integration.
        ranks: Ranks for which it is made; one alone needs no torchrun.
        gpu: Kind of the GPUs on which they train; empty: they train on CPUs.
        wrapper: Words before the program, such as another program that runs it.
    """

    def __init__(
        self,
        integration: Integration,
        folder: Path,
        *words: str,
        samples: int | None = None,
        ranks: int = 2,
        gpu: str = "",
        wrapper: Sequence[str] = (),
    ) -> None:
        example = catalog.root() / "examples" / integration.example
        self.folder, self.job, self._layouts, self._ranks = folder, example.with_suffix(".toml"), integration.layouts, ranks
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{devices_per_host}"] if ranks > 1 else []
        program = [*wrapper, str(example.with_suffix(".py")), *integration.words, *words]
        self.command = [*_paths(integration), integration.interpreter(), *launch, *program]
        self.settings = [f"train.samples={samples or integration.samples}", "train.advise=false", "train.frozen=''", "train.damping=2"]
        self.settings.append("limits.device_lock=false")  # losses and the client's own seconds do not depend on other trials
        self.settings += [f"cluster.device={gpu!r}", "cluster.memory_limit='8 GiB'"] if gpu else []
        """Settings of the job, to which others may be added."""

    def train(self, setting: str, *, devices: int | None = None, **options: Any) -> TrainResult:
        """Train on, and return how that ended."""
        settings = [*self.settings, f"cluster.devices_per_host={devices or self._ranks}"]
        return api.train(self.job, setting, run=self.folder, settings=settings, command=self.command, **options)

    def trained(self, setting: str, *, finished: bool = True, **options: Any) -> TrainResult:
        """Train on; raise EnvironmentLackingError unless it ends as expected."""
        result = self.train(setting, **options)
        if result.outcome.ending.value != ("finished" if finished else "stopped"):
            cause = f"the example ended as {result.outcome.ending.value}: {result.outcome.last.cause}"
            raise EnvironmentLackingError(cause, hint=f"read {result.outcome.folder / 'stderr.log'}; run `oppa doctor`")
        return result

    def begin(self, layout: int) -> str:
        """Return the setting of a run that begins in one of the two layouts."""
        name, value = self._layouts[layout]
        return f"micro_batch=8,{name}={value}"

    def client_s(self) -> float:
        """Return the seconds inside all calls of the client on rank 0, divided by the steps of the run's last attempt."""
        last = max((self.folder / ATTEMPTS).iterdir())
        steps = sum(1 for _ in (last / MEASUREMENTS).open())
        return float(json.loads((last / LEFT).read_text())["client_s"]) / steps

    def table(self, stages: Mapping[tuple[int, int], float]) -> Path:
        """Write a table with these steps per second by batch and number of the layout, and return its folder."""
        settings = [*self.settings, f"cluster.devices_per_host={self._ranks}"]
        problem = load_job(self.job, settings=settings, argv=self.command)
        rows = [
            TableRow(
                configuration=_configuration(problem, global_batch=batch, micro_batch=8, **dict([self._layouts[layout]])),
                steps_per_s=rate,
                log_stddev=UNSURE,
                memory_bytes=None,
                source="measured",
                trials=(1,),
            )
            for (batch, layout), rate in stages.items()
        ]
        folder = self.folder.with_name(f"{self.folder.name}-table")
        stated_table(problem, rows).write(folder)
        return folder

    def measured(self, batches: Sequence[int]) -> Path:
        """Measure a table of these batches in the first layout, and return its folder."""
        name, value = self._layouts[0]
        settings = [f"cluster.devices_per_host={self._ranks}", f"space.parameters.{name}=[{json.dumps(value)}]"]
        settings.append("space.parameters.micro_batch=[8]")
        problem = load_job(self.job, settings=[*self.settings, *settings], argv=self.command)
        return api.profile(problem, global_batch=batches, exhaustive=True, table=self.folder.with_name(f"{self.folder.name}-table")).folder


def _configuration(problem: Problem, **values: Any) -> Configuration:
    """Return the first candidate with other values; they may be no candidate, as ZeRO is none on one rank."""
    return Configuration.from_dict({**problem.candidates().configuration(0).to_dict(), **values})


def _paths(integration: Integration) -> list[str]:
    """Return the words that show oppa to a program in another environment, which has none."""
    return [] if integration.interpreter() == sys.executable else ["env", f"PYTHONPATH={catalog.root()}{os.pathsep}{catalog.client()}"]
