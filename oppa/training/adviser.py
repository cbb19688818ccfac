"""Whoever may want a run changed while it trains, as rank 0 knows it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from oppa.problem.configuration import Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a run should do before its next step."""

    configuration: Configuration
    """To train in from now on."""
    local_batches: tuple[int, ...] = ()
    """Of each worker, where they are to differ."""
    reason: str = ""
    """For people."""
    weighed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What spoke for it, as JSON has it: the goodput of the present and of the chosen configuration, the best, and what limits it."""
    before_step: int | None = None
    """Take the weights from before this step; None: as they are."""


class Adviser(Protocol):
    """Hears of a run on rank 0, and may want it changed; nothing of it may take time."""

    def step(self, **facts: Any) -> None:
        """An optimizer step was taken."""
        ...

    def changed(self, **facts: Any) -> None:
        """A change of configuration was tried."""
        ...

    def wanted(self, present: Configuration) -> Advice | None:
        """What to do; None: go on as it is."""
        ...
