"""Compare the norm test with constant batches and with warm-up by stages (Lau et al., section 5)."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.recorded_page import Page, written_page
from experiments.lib.recorder import Recorder, begin
from experiments.lib.run_trace import RunTrace
from experiments.lib.variants import Variant, rotated
from experiments.norm_test import page
from experiments.norm_test.schemes import BATCHES, CONSTANT, adaptive, constant, is_norm_test, matching
from oppa import catalog
from oppa.bench.registry import inputs
from oppa.report.record import Section


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NormTestExperiment:
    """Compares the schemes on one job."""

    name: str
    """Name of the command, and of the folder of its record."""
    job: str
    """Name of the job in `examples`."""
    title: str

    def record(self, folder: Path, seeds: int, tell: Callable[[str], None]) -> Path:
        """Train what the folder lacks, and write the page."""
        begin(folder, inputs(self.name, seeds=seeds))
        job, work = Path("examples", f"{self.job}.toml"), catalog.root() / "runs" / self.name
        run(Recorder(job=job, folder=folder, work=work, tell=tell), range(seeds))
        return written_page(folder, self.page(folder))

    def page(self, folder: Path) -> Page:
        """Return the page and its figures."""
        return page.page(folder, self.command, f"The norm test: {self.title}")

    def to_json(self, folder: Path, _tell: Callable[[str], None]) -> dict[str, Any]:
        """Return the headline figures."""
        return page.to_json(folder, self.command)

    def sections(self, folder: Path) -> list[Section]:
        """Return the tables of the page."""
        return page.sections(page.NormTestResults.read(folder, self.command))

    @property
    def command(self) -> str:
        """Return the command that makes the record."""
        return f"oppa bench {self.name} --run"


def run(recorder: Recorder, seeds: Sequence[int]) -> None:
    """Train each scheme with each seed, and each norm test's average batch as a constant one; a failed run raises an error."""
    table = recorder.table(BATCHES)
    for seed in seeds:
        schemes = [*adaptive(table), *(constant(table, batch) for batch in CONSTANT)]
        traces = [_trained(recorder, each, seed) for each in rotated(schemes, seed)]
        averages = [trace.average_batch for trace in traces if is_norm_test(trace.variant)]
        for batch in sorted({matching(table, average) for average in averages} - {*CONSTANT}):
            _trained(recorder, constant(table, batch), seed)


def _trained(recorder: Recorder, scheme: Variant, seed: int) -> RunTrace:
    return recorder.train(scheme.name, seed, scheme.begins, "--policy", scheme.policy)


DDP = NormTestExperiment(name="norm-test", job="norm_test", title="a small Llama on real text, four data-parallel ranks")
FSDP = NormTestExperiment(
    name="norm-test-fsdp",
    job="norm_test_fsdp",
    title="a small Llama on real text, under FSDP with the settings of the paper's tables 5 to 7",
)
