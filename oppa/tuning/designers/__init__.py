"""The designers that `oppa tune --designer` knows, by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from oppa.errors import InputError, nearest

if TYPE_CHECKING:  # the help names the default, and must not wait for numpy
    from oppa.problem.candidates import Candidates
    from oppa.tuning.designer import Designer

DEFAULT = "vanilla-bo"


def _uniform(candidates: "Candidates", memory_limit_bytes: int, seed: int) -> "Designer":
    from oppa.tuning.designers.uniform import Uniform

    return Uniform(candidates, seed=seed)


def _grid(candidates: "Candidates", memory_limit_bytes: int, seed: int) -> "Designer":
    from oppa.tuning.designers.grid import Grid

    return Grid(candidates)


def _vanilla_bo(candidates: "Candidates", memory_limit_bytes: int, seed: int) -> "Designer":
    from oppa.tuning.designers.vanilla_bo import VanillaBO

    return VanillaBO(candidates, memory_limit_bytes=memory_limit_bytes, seed=seed)


DESIGNERS: "dict[str, Callable[[Candidates, int, int], Designer]]" = {"random": _uniform, "grid": _grid, "vanilla-bo": _vanilla_bo}


def require_designer(name: str) -> None:
    """Raises InputError for a name that no designer has."""
    if name not in DESIGNERS:
        raise InputError(f"`{name}` is no designer", hint=nearest(name, DESIGNERS))


def make_designer(name: str, candidates: "Candidates", *, memory_limit_bytes: int, seed: int) -> "Designer":
    """The designer of that name; torch is loaded only for those that need it. Raises InputError for an unknown name."""
    require_designer(name)
    return DESIGNERS[name](candidates, memory_limit_bytes, seed)
