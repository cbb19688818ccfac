"""Make designers by name: a short name such as `oppa`, or `module:Class` for a designer of your own.

A class is called as `Class(problem, candidates, seed=seed)`; a function with this signature, which returns a designer, works as well.
"""

import functools
import inspect
import sys
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oppa import catalog, extensions
from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.problem.model import MODEL_HINT

if TYPE_CHECKING:  # the help prints DEFAULT, and must not wait for numpy
    from oppa.cost.coefficients import Belief
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.tuning.designer import Designer

DEFAULT = "oppa"
STOPPING = {"oppa": "precise", "oppa-no-prior": "precise", "oppa-paper": "paper"}
"""Default stopping rule of these designers (`default_stopping`)."""

DESIGNERS = {
    "oppa": "oppa.tuning.designers.oppa:Oppa",
    "oppa-no-prior": "oppa.tuning.designers.without_prior:WithoutPrior",
    "oppa-no-early-stop": "oppa.tuning.designers.oppa:Oppa",  # its stopping rule is `never`
    "oppa-paper": "oppa.tuning.designers.oppa_paper:OppaPaper",
    "grid": "oppa.tuning.designers.grid:Grid",
    "random": "oppa.tuning.designers.random_search:RandomSearch",
    "exhaustive": "oppa.tuning.designers.exhaustive:Exhaustive",
}
"""Short names of oppa's own designers, each with its `module:Class` (`known_designers`)."""
WITH_PRIOR = ("oppa", "oppa-no-early-stop", "oppa-paper")
"""Designers whose prior is the cost model. Where it does not cover the job, the first two are `oppa-no-prior`."""


def known_designers() -> Mapping[str, str]:
    """Return the short names of all designers, each with its `module:Class`; a checkout has those of others as well."""
    return {**DESIGNERS, **_baselines()["designers"]}


def default_stopping(designer: str) -> str:
    """Return the stopping rule of a designer's trials, where the job states none."""
    return {**STOPPING, **_baselines()["stopping"]}.get(designer, "never")


def require_designer(name: str) -> None:
    """Refuse a name that no designer has, and a `module:Class` that is not a designer.

    Raises:
        InputError: the name is unknown, the module cannot be imported, or the class does not exist or lacks a method.
        EnvironmentLackingError: the module imports a package that is not installed.
    """
    if ":" in name:
        _load(name)
    elif name not in (known := known_designers()):
        others = "" if len(known) > len(DESIGNERS) else "; the peers of `oppa bench search` need a checkout"
        raise InputError(f"`{name}` is no designer", hint=f"{nearest(name, known)}; name your own as `module:Class`{others}")


def make_designer(
    name: str, problem: "Problem", candidates: "Candidates", *, seed: int, beliefs: "Mapping[str, Belief] | None" = None
) -> "Designer":
    """Return the designer of that name; torch is loaded only for those that need it.

    Args:
        name: A key of `known_designers()`, or `module:Class`.
        beliefs: Coefficients learned elsewhere; only `oppa` takes them.

    Raises:
        InputError: for an unknown name, a class that is not a designer, or beliefs for a designer without coefficients.
        EnvironmentLackingError: the designer needs another library, which is not installed.
    """
    require_designer(name)
    if name in WITH_PRIOR and not problem.has_prior:
        if beliefs is not None or name == "oppa-paper":
            what = "starts from another study" if beliefs is not None else "needs its prior"
            raise InputError(f"the designer `{name}` {what}, which only a job with [model] and no [objective] can", hint=MODEL_HINT)
        name = "oppa-no-prior"
    if beliefs is not None:
        if name != "oppa":
            raise InputError(f"the designer `{name}` cannot start from another study", hint="use `--designer oppa`")
        from oppa.tuning.designers.oppa import Oppa

        return Oppa(problem, candidates, seed=seed, beliefs=beliefs)
    found = _load(name)
    _require_signature(name, found)
    designer: Designer = found(problem, candidates, seed=seed)
    return designer


def _load(name: str) -> Any:
    from oppa.tuning.designer import Designer

    root = str(catalog.root())
    if name in _baselines()["designers"] and root not in sys.path:
        sys.path.append(root)  # last, so that nothing in the checkout hides an installed module
    try:
        return extensions.load_class(known_designers().get(name, name), kind="designer", protocol=Designer)
    except EnvironmentLackingError as error:
        if extra := _baselines()["extras"].get(name):
            raise EnvironmentLackingError(error.message, hint=catalog.install_hint(extra)) from error
        raise


def _require_signature(name: str, found: Any) -> None:
    """Raise InputError unless `found` can be called as a designer's class is."""
    try:
        inspect.signature(found).bind("problem", "candidates", seed=0)
    except TypeError as error:
        raise InputError(f"`{name}` cannot be made: {error}", hint="it is called as `Class(problem, candidates, seed=seed)`") from None


@functools.cache
def _baselines() -> Mapping[str, Mapping[str, str]]:
    """Return the tables of `designers.toml`: the designers of others, which a checkout has and an installed package does not."""
    try:
        return tomllib.loads((catalog.root() / "experiments" / "baselines" / "designers.toml").read_text())
    except FileNotFoundError:
        return {"designers": {}, "stopping": {}, "extras": {}}
