"""What a cluster does at every batch size: throughput and memory of each strategy, measured or predicted, as one record.

Written by profiling, read by training, control and people. The goodput formula lies beside it: it is what the table is for.
"""

from oppa.table.origin import Hardware, Origin
from oppa.table.rows import Row, Strategy
from oppa.table.table import Table

__all__ = ["Hardware", "Origin", "Row", "Strategy", "Table"]
