"""Record the training runs of a benchmark. Each run is an ordinary command, and runs once.

    FOLDER/table/                  the table that configurations are chosen from
    FOLDER/runs/VARIANT-SEED.csv.gz    a run, step by step (`run_trace`)
    FOLDER/runs/origins.json       provenance of each run: command, commit, machine, time
    FOLDER/inputs.json             inputs of all runs: seeds, job files and the files that define them

Recorded runs are not repeated, so an interrupted benchmark can be resumed.
"""

import dataclasses
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.guarded_run import run_guarded
from experiments.lib.run_trace import RunTrace
from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.configuration import Configuration
from oppa.report.inputs import NAME as INPUTS
from oppa.report.inputs import Inputs
from oppa.report.record import provenance, write_texts, written
from oppa.table import Table
from oppa.training.run import ledger
from oppa.trials import logs
from oppa.trials.trial_folder import write_json


def begin(folder: Path, inputs: Inputs) -> None:
    """Record the inputs of a folder's runs before the first run.

    Args:
        inputs: Inputs with the argument `seeds`, which may differ from earlier calls; the largest number is kept.

    Raises:
        InputError: the folder has runs with other inputs.
    """
    known = Inputs.read(folder)
    if any((folder / "runs").glob("*.csv.gz")):
        alike = dataclasses.replace(known, arguments=inputs.arguments) if known else None
        differs = alike.differences(inputs) if alike else ["the record has no digest of its inputs"]
        if differs:
            raise InputError(
                f"`{folder}` has runs with other inputs: {', '.join(differs)}",
                hint="name another folder, or remove its `runs` and `table` to repeat all runs",
            )
    if known:
        seeds = max(each.arguments["seeds"] for each in (known, inputs))
        inputs = dataclasses.replace(inputs, arguments={**inputs.arguments, "seeds": seeds})
    write_texts(folder, {INPUTS: inputs.text})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Runs the profile and the training runs of one job, all under the same `oppa emulate` arguments.

    Raises:
        EnvironmentLackingError: from each method, if a command fails.
        InputError: a file cannot be written.
    """

    job: Path
    """Job file, relative to the checkout."""
    folder: Path
    """Folder of the records."""
    work: Path
    """Folder of ledgers and logs; logs remain there."""
    hosts: Sequence[str] = ()
    """Arguments of `oppa emulate` that precede a command; if empty, commands run directly on this machine."""
    tell: Callable[[str], None]
    """Receives a description of the next command."""

    def table(self, batches: Sequence[int]) -> Table:
        """Return the table of all layouts, batch sizes and micro-batches; measure it if it is not recorded."""
        self._require_job()
        place = self.folder / "table"
        if not place.exists():
            self.tell("measuring the table of all layouts, batches and micro-batches")
            sizes = ",".join(map(str, batches))
            words = ["profile", str(self.job), "--global-batch", sizes, "--exhaustive", "--table", self.typed(self.work / "table")]
            self._note("table", self._oppa(words, self.work / "profile.log"))
            Table.read(self.work / "table").write(place)  # copies the table without its study
        return Table.read(place)

    def train(self, variant: str, seed: int, begins: Configuration | str, *words: str) -> RunTrace:
        """Return the record of a training run with this seed; train if it is not recorded.

        Args:
            begins: Configuration of the table, or its textual form for a job without a table.
            words: Further arguments of `oppa train`.
        """
        name = f"{variant}-{seed}"
        if (known := self.folder / "runs" / f"{name}.csv.gz").exists():
            return RunTrace.read(known)
        self._require_job()
        self.tell(f"{name}: {begins if isinstance(begins, str) else f'{begins.id}, batch {begins.global_batch}'}")
        run = self.work / name
        shutil.rmtree(run, ignore_errors=True)
        arguments = ["train", str(self.job), *self._beginning(begins), "--set", f"training.seed={seed}", "--run", self.typed(run), *words]
        command = self._oppa(arguments, self.work / f"{name}.log")
        self._note(name, command)
        with written(self.folder / "runs"):
            trace = RunTrace.of(variant, seed, ledger.standing(ledger.read(run)))
            trace.write(self.folder / "runs")
        shutil.rmtree(run, ignore_errors=True)
        return trace

    def _beginning(self, begins: Configuration | str) -> list[str]:
        if isinstance(begins, str):
            return [begins]
        place = self.folder / "table"
        return [_setting(begins, Table.read(place)), "--table", self.typed(place)]

    def once(self, name: str, made: Path, *words: str) -> None:
        """Run an `oppa` command unless its result exists. A folder that a failed command left is removed first.

        Args:
            name: Name of the command in the log and in the provenance.
            made: File or folder that the command makes.
            words: Arguments of `oppa`.
        """
        done, recorded = (self.work / f"{name}.done").exists(), made.is_relative_to(self.folder) and name in self._origins()
        if made.exists() and (done or recorded):
            return
        self._require_job()
        self.tell(f"{name}: {words[0]}")
        shutil.rmtree(made, ignore_errors=True)
        self._note(name, self._oppa(words, self.work / f"{name}.log"))
        (self.work / f"{name}.done").touch()

    @staticmethod
    def typed(path: Path) -> str:
        """Return a path relative to the checkout, where commands run."""
        return os.path.relpath(path, catalog.root())

    def _require_job(self) -> None:
        if not (catalog.root() / self.job).is_file():
            raise EnvironmentLackingError(f"`{catalog.root() / self.job}` does not exist", hint="run it from a checkout")

    def _oppa(self, words: Sequence[str], log: Path) -> str:
        """Run `oppa` in the checkout, and return the command as a user types it. The process ends with this one."""
        oppa, emulated = [sys.executable, "-m", "oppa"], ["emulate", *self.hosts, "--"] if self.hosts else []
        argv = [*oppa, *([*emulated, *oppa] if emulated else []), *words]
        with written(self.work):
            log.touch()
        how = run_guarded(argv, catalog.root(), environment={**os.environ, "OMP_NUM_THREADS": "1"}, log=log)
        typed = shlex.join(["oppa", *([*emulated, "oppa"] if emulated else []), *words])
        if how:
            raise EnvironmentLackingError(f"`{typed}` failed: {how}", hint=logs.last_words(log) or f"see {log}")
        return typed

    def _note(self, name: str, command: str) -> None:
        """Record the provenance of a record."""
        place = self.folder / "runs" / "origins.json"
        with written(place.parent):
            write_json(place, {**self._origins(), name: {**provenance(), "command": command}})

    def _origins(self) -> dict[str, Any]:
        place = self.folder / "runs" / "origins.json"
        return dict(json.loads(place.read_text())) if place.exists() else {}


def _setting(configuration: Configuration, table: Table) -> str:
    """Return a configuration as a user types it; parameters with a single value in the table are left out."""
    values = [row.configuration.to_dict() for row in table.rows]
    return ",".join(f"{name}={value}" for name, value in configuration.to_dict().items() if len({each[name] for each in values}) > 1)
