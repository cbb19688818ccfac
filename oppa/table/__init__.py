"""Store what a cluster does at every batch size: throughput and memory of each parallel strategy, measured or predicted.

Profiling writes the table; training, control and people read it. The goodput formula is in this package, since the table serves it.
"""

from oppa.table.origin import HardwareFingerprint, Origin
from oppa.table.rows import ParallelStrategy, TableRow
from oppa.table.table import Table

__all__ = ["HardwareFingerprint", "Origin", "ParallelStrategy", "Table", "TableRow"]
