"""Find, for each full-size candidate, the configuration that stands for it at the smaller size.

Notation (N candidates at full size, k = layers at full size / layers at the smaller size):
    stand_in    position among the proxy's candidates, -1 for none    (N,)

A stand-in has the same tp, cp, ep, ZeRO stage, micro-batch and knobs. Its pipeline has pp / k stages, so that each keeps its layers. If k
does not divide pp, it keeps its stages, and each has fewer layers. The data-parallel degree fills the devices. Several candidates may share
a stand-in. One without a legal stand-in has none, and its prediction rests on what all others teach.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.exact_arithmetic import divide, multiply
from oppa.problem.problem import Problem
from oppa.problem.space import DERIVED, SearchSpace
from oppa.tuning.proxy.rung import Rung, cut

Columns = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proxy:
    """Holds a job at a smaller size, and what its configurations stand for."""

    problem: Problem
    candidates: Candidates
    """Configurations that stand for at least one at full size."""
    stand_in: NDArray[np.intp]
    """Position of each full-size candidate's stand-in, -1 for none, shape (N,)."""

    @property
    def rung(self) -> Rung:
        """Return the smaller size."""
        return Rung.of(self.problem)

    @property
    def matched(self) -> NDArray[np.bool_]:
        """Return which full-size candidates have a stand-in, shape (N,)."""
        return self.stand_in >= 0


def proxy_of(problem: Problem, candidates: Candidates, rung: Rung) -> Proxy:
    """Return a job at a smaller size, restricted to the stand-ins of its candidates.

    Raises:
        InputError: the job cannot be cut to this size, or no candidate has a legal stand-in there.
    """
    smaller = cut(problem, rung)
    columns, legal = images(candidates, smaller, layers=problem.model.layers)
    if not legal.any():
        raise InputError(
            f"no configuration of `{problem.name}` has a stand-in on {rung.hosts} hosts with {rung.layers} layers and a global batch "
            f"of {rung.global_batch}",
            hint="use more hosts in [proxy], or a global batch that more micro-batches divide",
        )
    codes = np.stack([_codes(known.values, columns[known.name][legal]) for known in smaller.space.parameters], axis=1)
    rows, which = np.unique(codes, axis=0, return_inverse=True)
    values = [[known.values[code] for code in rows[:, column]] for column, known in enumerate(smaller.space.parameters)]
    space = dataclasses.replace(smaller.space, listed=tuple(zip(*values, strict=True)))
    stand_in = np.full(len(candidates), -1, dtype=np.intp)
    stand_in[legal] = which.reshape(-1)
    kept = dataclasses.replace(smaller, space=space)
    found = Proxy(problem=kept, candidates=kept.candidates(), stand_in=stand_in)
    return dataclasses.replace(found, problem=dataclasses.replace(kept, baseline=_baseline(problem, candidates, found)))


def images(candidates: Candidates, smaller: Problem, *, layers: int) -> tuple[Columns, NDArray[np.bool_]]:
    """Return the values of each candidate's stand-in by parameter, and whether it is legal, shapes (N,).

    Args:
        smaller: The job at the smaller size.
        layers: Layers at full size.
    """
    times, pp = layers // smaller.model.layers, candidates.column("pp")
    columns, legal = _at(candidates, smaller, np.where(pp % times == 0, pp // times, pp))
    if times == 1:
        return columns, legal
    others, also = _at(candidates, smaller, pp)
    return {name: np.where(legal, column, others[name]) for name, column in columns.items()}, legal | also


def _at(candidates: Candidates, smaller: Problem, pp: NDArray[Any]) -> tuple[Columns, NDArray[np.bool_]]:
    """Return the values of stand-ins with these pipeline degrees, and a mask of the legal ones."""
    space, n = smaller.space, len(candidates)
    columns = {name: candidates.column(name) for name in space.names} | {"pp": pp}
    fixed = np.prod([columns[name].astype(np.int64) for name in space.degrees if name != "dp"], axis=0)
    columns["dp"] = smaller.cluster.devices // fixed
    legal = (columns["dp"] > 0) & (smaller.cluster.devices % fixed == 0)
    columns["dp"] = np.maximum(columns["dp"], 1)
    legal &= smaller.global_batch % (columns["dp"] * columns["micro_batch"].astype(np.int64)) == 0
    for known in space.parameters:
        if known.when is not None:
            active = np.broadcast_to(np.asarray(known.when(_named(space, columns)), dtype=bool), n)
            columns[known.name] = np.where(active, columns[known.name], known.default)
        legal &= np.isin(columns[known.name], known.values)
    for constraint in space.constraints if space.listed is None else ():
        legal &= np.broadcast_to(np.asarray(constraint.expression(_named(space, columns)), dtype=bool), n)
    return columns, legal


def _named(space: SearchSpace, columns: Columns) -> Mapping[str, Any]:
    """Return the values of all names that an expression may use."""
    derived = divide(space.facts["global_batch"], multiply(columns["dp"], columns["micro_batch"]))
    return {**space.facts, **columns, DERIVED: derived}


def _codes(values: tuple[Any, ...], column: NDArray[Any]) -> NDArray[np.intp]:
    """Return the position of each entry among the values."""
    code = {value: position for position, value in enumerate(values)}
    return np.array([code[value] for value in column.tolist()], dtype=np.intp)


def _baseline(problem: Problem, candidates: Candidates, proxy: Proxy) -> Configuration | None:
    """Return the stand-in of the user's present configuration; None if there is none."""
    if problem.baseline is None:
        return None
    index = int(proxy.stand_in[candidates.index_of(problem.baseline)])
    return None if index < 0 else proxy.candidates.configuration(index)
