"""Train a small Llama with Transformers' `Trainer` under each policy, seed by seed, on two ranks of this machine."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from experiments.goodput.variants import AS_WRITTEN, Variant, variants
from experiments.lib.recorder import Recorder
from oppa.table import Table

JOB = Path("examples", "transformers_trainer.toml")
BATCHES = (8, 16, 32, 64, 128)
"""Global batches of the table, in sequences; adaptive variants begin with the first, and each is a static variant, too."""


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train all runs that are not in `folder` yet, seed by seed; `work` receives the ledgers.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    recorder = Recorder(job=JOB, folder=folder, work=work, tell=tell)
    every = compared(recorder.table(BATCHES))
    for seed in seeds:
        for variant in _from(seed % len(every), every):
            recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy, "--set", "train.advise=false")


def compared(table: Table) -> list[Variant]:
    """Return the variants, without the paper's objective, and without a second one that would train as another does."""
    found = [each for each in variants(table, BATCHES[0], BATCHES[-1]) if each.name != AS_WRITTEN]
    distinct = {(each.policy, each.begins): each for each in reversed(found)}
    return [each for each in found if each in distinct.values()]


def _from(first: int, every: Sequence[Variant]) -> Iterator[Variant]:
    """Yield all variants from one on, so that drift of the machine affects all of them equally."""
    yield from every[first:]
    yield from every[:first]
