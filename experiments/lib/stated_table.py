"""Make a table of rows that no study of oppa has measured."""

import time
from collections.abc import Sequence

from oppa.problem.problem import Problem
from oppa.table import Origin, Table, TableRow


def stated_table(problem: Problem, rows: Sequence[TableRow], *, simulated: bool = False) -> Table:
    """Return a table of all configurations of a problem, as an exhaustive profile would make it.

    Args:
        simulated: The rows hold on any machine.
    """
    facts = {"candidates": len(rows), "trials": len(rows), "spent_s": 1.0, "created_at": time.time()}
    origin = Origin.of(problem, simulated=simulated, study="stated", method="exhaustive", complete=True, **facts)
    return Table(rows=tuple(rows), origin=origin)
