"""Train with Transformers' `Trainer` under each policy, seed by seed."""

from collections.abc import Sequence

from experiments.goodput.variants import AS_WRITTEN, variants
from experiments.lib.recorder import Recorder
from experiments.lib.variants import Variant, rotated
from oppa.table import Table


def run(recorder: Recorder, batches: Sequence[int], seeds: Sequence[int]) -> None:
    """Train all runs that are not recorded yet, seed by seed.

    Args:
        batches: Global batches of the table, ascending.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    every = compared(recorder.table(batches))
    for seed in seeds:
        for variant in rotated(every, seed):
            recorder.train(variant.name, seed, variant.begins, "--policy", variant.policy, "--set", "train.advise=false")


def compared(table: Table) -> list[Variant]:
    """Return the variants, without the paper's objective, and without a second one that would train as another does."""
    found = [each for each in variants(table, table.batches[0], table.batches[-1]) if each.name != AS_WRITTEN]
    distinct = {(each.policy, each.begins): each for each in reversed(found)}
    return [each for each in found if each in distinct.values()]
