"""The table from which the service's jobs choose."""

from tests.control.conftest import table, table_of

__all__ = ["table", "table_of"]
