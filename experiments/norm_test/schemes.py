"""Define the schemes that are compared: several eta for both forms of the norm test, stagewise warm-up, and constant batches."""

from collections.abc import Sequence

from experiments.lib.variants import Variant
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.table import Table

FIRST, LARGEST = 4, 128
"""Smallest and largest batch in sequences: the paper's 256 and 8192, divided by 64."""
BATCHES = (FIRST, *range(8, LARGEST + 1, 8))
"""Global batches of the table, in sequences."""
ETAS = (0.4, 0.58, 0.8, 1.0)
"""Values of eta for the unbiased form of the test; with 1, the test requests a batch of the noise scale."""
PAPER_ETAS = (0.05, 0.15)
"""Values of eta for eq. 5 as written."""
CONSTANT = (32, 64, 128)
"""A quarter of the largest batch, half of it, and all of it, as in the paper; also the stages of the warm-up."""
NORM_TEST, PAPER, STAGEWISE, CONSTANTS = "norm-test", "norm-test-paper", "stagewise", "constant"


def adaptive(table: Table) -> list[Variant]:
    """Return the schemes that change the batch."""
    first, quarter = fastest_at(table, FIRST), fastest_at(table, CONSTANT[0])
    return [
        *(Variant(f"{NORM_TEST}-{eta:g}", f"norm-test,eta={eta:g}", first) for eta in ETAS),
        *(Variant(f"{PAPER}-{eta:g}", f"norm-test-paper,eta={eta:g}", first) for eta in PAPER_ETAS),
        Variant(STAGEWISE, "stagewise", quarter),
    ]


def constant(table: Table, batch: int) -> Variant:
    """Return the scheme of a constant batch."""
    return Variant(f"{CONSTANTS}-{batch}", "static", fastest_at(table, batch))


def is_norm_test(scheme: str) -> bool:
    """Return whether a scheme is the unbiased form of the test, which is compared with constant batches of its average size."""
    return scheme.startswith(f"{NORM_TEST}-") and not scheme.startswith(PAPER)


def matching(table: Table, average: float) -> int:
    """Return the table's largest batch that does not exceed `average`, so that a run with it takes at least as many steps.

    If `average` is below all batches, it is the smallest one.
    """
    return max(batch for batch in table.batches if batch <= max(average, min(table.batches)))


def fastest_at(table: Table, batch: int) -> Configuration:
    """Return the fastest configuration of the table at a batch; raises InputError if the table lacks the batch."""
    rows = [row for row in table.rows if row.configuration.global_batch == batch]
    if not rows:
        sizes: Sequence[int] = table.batches
        raise InputError(f"the table has no batch of {batch}", hint=f"it has {', '.join(map(str, sizes))}")
    return max(rows, key=lambda row: row.steps_per_s).configuration
