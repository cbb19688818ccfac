"""Measure how much sooner Transformers' `Trainer` reaches a loss under each policy (COPUS, table 1)."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.goodput.sections import table_section
from experiments.goodput.variants import AS_WRITTEN, variants
from experiments.lib.recorded_page import Page, page_of, written_page
from experiments.lib.recorder import Recorder, begin
from experiments.lib.run_trace import facts_of
from experiments.lib.variants import Variant, rotated
from experiments.trainers_goodput import page, predictions
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section
from oppa.table import Table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerExperiment:
    """Compares the policies on one job."""

    name: str
    """Name of the command, and of the folder of its record."""
    job: str
    """Name of the job in `examples`."""
    batches: Sequence[int]
    """Global batches of the table, in sequences; adaptive variants begin with the first, and each is a static variant, too."""
    title: str
    predicts: bool = False
    """True to record what the prior predicts for the table before it is measured."""

    def record(self, folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
        """Train what the folder lacks, and write the page."""
        begin(folder, inputs(self.name, seeds=seeds))
        recorder = Recorder(job=Path("examples", f"{self.job}.toml"), folder=folder, work=catalog.root() / "runs" / self.name, tell=tell)
        if self.predicts:
            predictions.write(folder, catalog.root() / recorder.job, self.batches)
        recorder.table(self.batches)
        if self.predicts:
            written_page(folder, self.page(folder))  # the runs may take longer than the machine is there
        run(recorder, self.batches, range(seeds))
        return written_page(folder, self.page(folder))

    def page(self, folder: Path) -> Page:
        """Return the page and its figures; without any run it has the profile and its predictions alone."""
        if self._has_profile_alone(folder):
            title = f"Profile: {self.title}"
            return page_of(folder, self.command, title, self.sections(folder), {}, records=())
        return page_of(folder, self.command, f"Time to loss: {self.title}", self.sections(folder), page.figures(folder, self.command))

    def to_json(self, folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
        """Return the headline figures, as fractions."""
        compared = {"prior": predictions.to_json(folder)} if self.predicts else {}
        if self._has_profile_alone(folder):
            return {**compared, **facts_of(folder, ())}
        return {**page.to_json(folder, self.command), **compared}

    def sections(self, folder: Path) -> list[Section]:
        """Return the tables of the page."""
        compared = [predictions.section(folder)] if self.predicts else []
        if self._has_profile_alone(folder):
            profile = table_section(Table.read(folder / "table"))
            text = "Samples per second, at the fastest micro-batch; * is the fastest layout of its batch."
            text += f" No training run is recorded yet: `{self.command}` goes on with them."
            return [dataclasses.replace(profile, text=text), *compared]
        return [*page.sections(folder, self.command), *compared]

    def _has_profile_alone(self, folder: Path) -> bool:
        return self.predicts and (folder / "table").exists() and not any((folder / "runs").glob("*.csv.gz"))

    @property
    def command(self) -> str:
        """Return the command that makes the record."""
        return f"oppa bench {self.name} --run"


def run(recorder: Recorder, batches: Sequence[int], seeds: Sequence[int]) -> None:
    """Train all runs that are not recorded yet, seed by seed; `batches` are those of the table. A run that fails raises an error."""
    every = compared(recorder.table(batches))
    for seed in seeds:
        for variant in rotated(every, seed):
            recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy, "--set", "train.advise=false")


def compared(table: Table) -> list[Variant]:
    """Return the variants, without the paper's objective, and without a second one that would train as another does."""
    found = [each for each in variants(table, table.batches[0], table.batches[-1]) if each.name != AS_WRITTEN]
    distinct = {(each.policy, each.begins): each for each in reversed(found)}
    return [each for each in found if each in distinct.values()]


CPU = TrainerExperiment(
    name="trainers-goodput",
    job="transformers_trainer",
    batches=(8, 16, 32, 64, 128),
    title="a small Llama under Transformers' `Trainer`, two ranks on one machine",
)
GPU = TrainerExperiment(
    name="trainers-goodput-gpu",
    job="transformers_gpu",
    batches=(8, 16, 32, 64),
    title="a Llama of 206 million parameters under Transformers' `Trainer`, on one H100",
    predicts=True,
)
