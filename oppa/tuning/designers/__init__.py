"""Makes the designers that `oppa tune --designer` accepts, by name."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError, nearest

if TYPE_CHECKING:  # the help prints DEFAULT, and must not wait for numpy
    from oppa.cost.coefficients import Belief
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.tuning.designer import Designer

DEFAULT = "oppa"
STOPPING = {"oppa": "sure", "oppa-no-prior": "sure", "oppa-paper": "paper"}
"""Default stopping rule of these designers; the others never end a trial early."""


def _oppa(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.oppa import Oppa

    return Oppa(problem, candidates, seed=seed)


def _without_prior(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.without_prior import WithoutPrior

    return WithoutPrior(problem, candidates, seed=seed)


def _oppa_paper(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.oppa_paper import OppaPaper

    return OppaPaper(problem, candidates, seed=seed)


def _vanilla_bo(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.vanilla_bo import VanillaBO

    if problem.search_options.beta is None:
        raise InputError("`vanilla-bo` cannot follow `beta = bound`", hint="give `[designer] beta` a number, or use `--designer oppa`")
    return VanillaBO(candidates, memory_limit_bytes=problem.cluster.usable_bytes, seed=seed, beta=problem.search_options.beta)


def _tpe(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    return _optuna("tpe", problem, candidates, seed)


def _optuna_gp(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    return _optuna("optuna-gp", problem, candidates, seed)


def _optuna(sampler: str, problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    _require("optuna")
    from oppa.tuning.designers.optuna_study import OptunaStudy

    return OptunaStudy(sampler, candidates, memory_limit_bytes=problem.cluster.usable_bytes, seed=seed)


def _xgboost(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    _require("xgboost")
    from oppa.tuning.designers.xgboost_ranking import XGBoostRanking

    return XGBoostRanking(candidates, seed=seed)


def _cost_model(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.cost_model import FittedCostModel

    return FittedCostModel(problem, candidates, seed=seed)


def _planner(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.planner import Planner

    return Planner(problem, candidates)


def _grid(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.grid import Grid

    return Grid(problem, candidates)


def _uniform(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.random_search import RandomSearch

    return RandomSearch(candidates, seed=seed)


def _exhaustive(problem: "Problem", candidates: "Candidates", seed: int) -> "Designer":
    from oppa.tuning.designers.exhaustive import Exhaustive

    return Exhaustive(candidates)


DESIGNERS: "Mapping[str, Callable[[Problem, Candidates, int], Designer]]" = {
    "oppa": _oppa,
    "oppa-no-prior": _without_prior,
    "oppa-no-early-stop": _oppa,  # its stopping rule is `never`
    "oppa-paper": _oppa_paper,
    "vanilla-bo": _vanilla_bo,
    "tpe": _tpe,
    "optuna-gp": _optuna_gp,
    "xgboost": _xgboost,
    "cost-model": _cost_model,
    "planner": _planner,
    "grid": _grid,
    "random": _uniform,
    "exhaustive": _exhaustive,
}


def require_designer(name: str) -> None:
    """Raise InputError for a name that no designer has."""
    if name not in DESIGNERS:
        raise InputError(f"`{name}` is no designer", hint=nearest(name, DESIGNERS))


def make_designer(
    name: str, problem: "Problem", candidates: "Candidates", *, seed: int, beliefs: "Mapping[str, Belief] | None" = None
) -> "Designer":
    """Return the designer of that name; torch is loaded only for those that need it.

    Args:
        beliefs: Coefficients learned elsewhere; only `oppa` takes them.

    Raises:
        InputError: for an unknown name, or beliefs for a designer without coefficients.
        EnvironmentLackingError: the designer needs another library, which is not installed.
    """
    require_designer(name)
    if beliefs is None:
        return DESIGNERS[name](problem, candidates, seed)
    if name != "oppa":
        raise InputError(f"the designer `{name}` cannot start from another study", hint="use `--designer oppa`")
    from oppa.tuning.designers.oppa import Oppa

    return Oppa(problem, candidates, seed=seed, beliefs=beliefs)


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as lacking:
        raise EnvironmentLackingError(f"`{lacking.name}` is not installed", hint=catalog.install_hint("peers")) from lacking
