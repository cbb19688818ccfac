"""The designers that `oppa tune --designer` knows, by name."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oppa.errors import InputError, nearest

if TYPE_CHECKING:  # the help names the default, and must not wait for numpy
    from oppa.cost.coefficients import Belief
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.tuning.designer import Designer

DEFAULT = "oppa"
STOPPING = {"oppa": "sure", "oppa-paper": "paper"}
"""How these end trials early unless told otherwise; the others never do."""


def _uniform(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.uniform import Uniform

    return Uniform(candidates, seed=seed)


def _grid(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.grid import Grid

    return Grid(candidates)


def _vanilla_bo(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.vanilla_bo import VanillaBO

    beta = problem.strategy.beta or 1.0
    return VanillaBO(candidates, memory_limit_bytes=problem.cluster.memory_limit_bytes, seed=seed, beta=beta)


def _oppa(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.oppa import Oppa

    return Oppa(problem, candidates, seed=seed)


def _oppa_paper(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.oppa_paper import OppaPaper

    return OppaPaper(problem, candidates, seed=seed)


DESIGNERS: "Mapping[str, Callable[[Problem, Candidates, int], Designer]]" = {
    "oppa": _oppa,
    "oppa-paper": _oppa_paper,
    "vanilla-bo": _vanilla_bo,
    "random": _uniform,
    "grid": _grid,
}


def require_designer(name: str) -> None:
    """Raises InputError for a name that no designer has."""
    if name not in DESIGNERS:
        raise InputError(f"`{name}` is no designer", hint=nearest(name, DESIGNERS))


def make_designer(
    name: str, problem: "Problem", candidates: "Candidates", *, seed: int, beliefs: "Mapping[str, Belief] | None" = None
) -> "Designer":
    """The designer of that name; torch is loaded only for those that need it.

    Args:
        beliefs: Coefficients learned elsewhere; `oppa` alone has any.

    Raises:
        InputError: for an unknown name, or beliefs for a designer without coefficients.
    """
    require_designer(name)
    if beliefs is None:
        return DESIGNERS[name](problem, candidates, seed)
    if name != "oppa":
        raise InputError(f"the designer `{name}` cannot start from another study", hint="use `--designer oppa`")
    from oppa.tuning.designers.oppa import Oppa

    return Oppa(problem, candidates, seed=seed, beliefs=beliefs)
