"""The runs of the real experiment: a small GPT on real text, on four hosts that this machine plays, under each policy, seed by seed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.bench.goodput.variants import Variant, variants
from oppa.bench.recorder import Recorder

JOB = Path("examples", "goodput.toml")
HOSTS = ("--hosts", "4", "--cpus-per-rank", "0.45", "--racks", "2", "--bandwidth", "800mbit", "--uplink", "460mbit", "--latency", "1ms")
BATCHES = (8, 12, 16, 24, 32, 48, 64, 96)
"""Global batches of the table, in sequences; all that adapts begins with the first."""
STATIC = (16, 32, 64)
"""Batches of static runs, each in its fastest layout. One of 8 came to a loss of 1.9 after 68 seconds in a pilot, one of 16 after 59."""


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Do all runs that are not in `folder` yet, seed by seed; ledgers are made in `work`.

    Raises:
        EnvironmentLackingError: if a run fails.
    """
    recorder = Recorder(job=JOB, folder=folder, work=work, hosts=HOSTS, tell=tell)
    table = recorder.table(BATCHES)
    for seed, variant in _order(variants(table, BATCHES[0], BATCHES[-1], static=STATIC), seeds):
        recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy)


def _order(all_of_them: Sequence[Variant], seeds: Sequence[int]) -> Iterator[tuple[int, Variant]]:
    """Seed by seed, beginning with another variant each time: whatever drifts meets all alike."""
    for seed in seeds:
        first = seed % len(all_of_them)
        for variant in [*all_of_them[first:], *all_of_them[:first]]:
            yield seed, variant
