"""What is compared: several eta of both forms of the test, warm-up by stages, and constant batches."""

import dataclasses
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.table import Table

FIRST, LARGEST = 4, 128
"""Sequences: the paper's 256 and 8192 by 64."""
BATCHES = (FIRST, *range(8, LARGEST + 1, 8))
"""Of the table."""
ETAS = (0.4, 0.58, 0.8, 1.0)
"""The last asks for the noise scale itself."""
PAPER_ETAS = (0.05, 0.15)
"""Under eq. 5 as written."""
CONSTANT = (32, 64, 128)
"""A quarter of the largest batch, half of it, and all, as the paper has them; and the stages of the warm-up."""
NORM_TEST, PAPER, STAGEWISE, CONSTANTS = "norm-test", "norm-test-paper", "stagewise", "constant"


@dataclasses.dataclass(frozen=True, slots=True)
class Scheme:
    """How the batch is chosen."""

    name: str
    policy: str
    """With its settings."""
    begins: Configuration


def adaptive(table: Table) -> list[Scheme]:
    """All whose batch changes."""
    first, quarter = fastest_at(table, FIRST), fastest_at(table, CONSTANT[0])
    return [
        *(Scheme(f"{NORM_TEST}-{eta:g}", f"norm-test,eta={eta:g}", first) for eta in ETAS),
        *(Scheme(f"{PAPER}-{eta:g}", f"norm-test-paper,eta={eta:g}", first) for eta in PAPER_ETAS),
        Scheme(STAGEWISE, "stagewise", quarter),
    ]


def constant(table: Table, batch: int) -> Scheme:
    """A batch that stays."""
    return Scheme(f"{CONSTANTS}-{batch}", "static", fastest_at(table, batch))


def is_norm_test(scheme: str) -> bool:
    """Whether it is the unbiased form of the test, which is compared with constant batches of its size."""
    return scheme.startswith(f"{NORM_TEST}-") and not scheme.startswith(PAPER)


def matching(table: Table, average: float) -> int:
    """The largest batch of the table that is no larger than an average: whoever has it takes at least as many steps."""
    return max(batch for batch in table.batches if batch <= max(average, min(table.batches)))


def fastest_at(table: Table, batch: int) -> Configuration:
    """The fastest configuration of the table at a batch; raises InputError where it has none."""
    rows = [row for row in table.rows if row.configuration.global_batch == batch]
    if not rows:
        sizes: Sequence[int] = table.batches
        raise InputError(f"the table has no batch of {batch}", hint=f"it has {', '.join(map(str, sizes))}")
    return max(rows, key=lambda row: row.steps_per_s).configuration
