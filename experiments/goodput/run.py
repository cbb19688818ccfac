"""Run the real experiment: a small GPT on real text, on four emulated hosts, under each policy, seed by seed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.goodput.variants import variants
from experiments.lib.recorder import Recorder
from experiments.lib.variants import rotated

JOB = Path("examples", "goodput.toml")
HOSTS = ("--hosts", "4", "--cpus-per-rank", "0.45", "--racks", "2", "--bandwidth", "800mbit", "--uplink", "460mbit", "--latency", "1ms")
BATCHES = (8, 12, 16, 24, 32, 48, 64, 96)
"""Global batches of the table, in sequences; adaptive variants begin with the first."""
STATIC = (16, 32, 64)
"""Static batches, each in its fastest layout. In a pilot, a batch of 8 reached a loss of 1.9 after 68 seconds, and one of 16 after 59."""


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train all runs that are not in `folder` yet, seed by seed; `work` receives the ledgers.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    recorder = Recorder(job=JOB, folder=folder, work=work, hosts=HOSTS, tell=tell)
    table = recorder.table(BATCHES)
    every = variants(table, BATCHES[0], BATCHES[-1], static=STATIC)
    for seed in seeds:
        for variant in rotated(every, seed):
            recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy)
