"""Run each scheme with each seed, and for each norm test also the constant batch of its average size."""

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.lib.recorder import Recorder
from experiments.lib.run_trace import RunTrace
from experiments.lib.variants import Variant, rotated
from experiments.norm_test.schemes import BATCHES, CONSTANT, adaptive, constant, is_norm_test, matching


def run(job: Path, folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train all runs that are not in `folder` yet, seed by seed; `work` receives the ledgers.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    recorder = Recorder(job=job, folder=folder, work=work, tell=tell)
    table = recorder.table(BATCHES)
    for seed in seeds:
        schemes = [*adaptive(table), *(constant(table, batch) for batch in CONSTANT)]
        traces = [_trained(recorder, each, seed) for each in rotated(schemes, seed)]
        averages = [trace.average_batch for trace in traces if is_norm_test(trace.variant)]
        for batch in sorted({matching(table, average) for average in averages} - {*CONSTANT}):
            _trained(recorder, constant(table, batch), seed)


def _trained(recorder: Recorder, scheme: Variant, seed: int) -> RunTrace:
    return recorder.train(scheme.name, seed, scheme.begins, "--policy", scheme.policy)
