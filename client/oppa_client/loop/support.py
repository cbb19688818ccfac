"""State what the loops of all frameworks can do under oppa, and refuse what does not go with a changing batch."""

from __future__ import annotations

import os

from oppa_client.run_files import ContractError

ABILITIES = {"batch": "both", "micro_batch": True, "restart": True, "elastic": True}
"""Abilities of a loop that takes each step from the plan of its run, and whose checkpoints any layout resumes."""


def apart(library: str, ranks: int) -> dict[str, bool]:
    """Return the obstacle of ranks that a launcher started together, and that a library trains apart, as one run each.

    Args:
        library: Name of the library.
        ranks: Number of ranks by the library.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    return {f"{ranks} ranks of {library}, where the launcher started {started}": ranks != started}


def require_none(obstacles: dict[str, bool], known: str) -> None:
    """Raise ContractError if an obstacle is present.

    Args:
        obstacles: What does not go with a changing batch, and True where it is present.
        known: What is supported, and the page that describes it.
    """
    if found := [name for name, present in obstacles.items() if present]:
        raise ContractError(f"the batch cannot change with {found[0]}: {known}")
