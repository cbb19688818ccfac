"""Validate `[proxy]` of a job file: the smaller size at which a search runs before its best configurations run at full size."""

from typing import Annotated, Literal

from pydantic import Field

from oppa.problem.bounds import LARGEST_BATCH, MOST_HOSTS, MOST_LAYERS
from oppa.problem.declaration import DeclaredTable
from oppa.problem.training import ProxyChoice

AUTO: Literal["auto"] = "auto"


class ProxyTable(DeclaredTable):
    """Validates `[proxy]`."""

    hosts: Annotated[int, Field(ge=1, le=MOST_HOSTS)] | Literal["auto"] = AUTO
    """Hosts of the smaller size."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | Literal["auto"] = AUTO
    """Layers of its model, a divisor of the job's."""
    global_batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | Literal["auto"] = AUTO
    """Sequences of its step. `"auto"` keeps the work of each device."""

    def record(self) -> ProxyChoice:
        """Return the choice."""
        return ProxyChoice(**{name: None if value == AUTO else value for name, value in self.model_dump().items()})
