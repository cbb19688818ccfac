"""Enumerate every valid configuration of a search space, in columns; a `Configuration` object is built on demand.

Notation (n candidates):
    codes    per parameter, each candidate's position in the parameter's values; one or two bytes       (n,)
    column   the values themselves                                                                      (n,)
    keys     all codes of a candidate as one number; they increase, so no candidate occurs twice        (n,)
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppa.errors import SpaceError
from oppa.problem.bounds import INTEGERS, MOST_CANDIDATES
from oppa.problem.configuration import Configuration, Value
from oppa.problem.exact_arithmetic import divide, multiply
from oppa.problem.space import DERIVED, Facts, Parameter, SearchSpace

Codes = NDArray[np.uint8] | NDArray[np.uint16]

DEFAULTS = Configuration(dp=1, global_batch=1, micro_batch=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """Holds the valid configurations of a space, in an order that depends on the space alone."""

    space: SearchSpace
    codes: Mapping[str, Codes]
    removed: tuple[int, ...]
    """Number of (partial) configurations that each constraint removed, once all its names had values."""

    def __len__(self) -> int:
        return len(self.codes["dp"])

    def __iter__(self) -> Iterator[Configuration]:
        return map(self.configuration, range(len(self)))

    def configuration(self, index: int) -> Configuration:
        """Return the candidate at a position."""
        values = {parameter.name: parameter.values[self.codes[parameter.name][index]] for parameter in self.space.parameters}
        return self.space.configuration({"global_batch": self.space.facts["global_batch"], **values})

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of a parameter or of `num_microbatches`, shape (n,); a parameter that the space lacks has its default."""
        columns = _Columns(self.space.facts, self.space, self.codes)
        return np.broadcast_to(columns[name] if name in columns else DEFAULTS[name], len(self))

    def matters(self, parameter: Parameter) -> NDArray[np.bool_]:
        """Return in which candidates the parameter's condition holds, shape (n,); in the others it has its default."""
        columns = _Columns(self.space.facts, self.space, self.codes)
        return np.broadcast_to(np.asarray(parameter.when(columns) if parameter.when else True, dtype=bool), len(self))

    def index_of(self, configuration: Configuration) -> int:
        """Return the position of a configuration; raises SpaceError if it is not a candidate."""
        try:
            key = sum(
                parameter.values.index(configuration[parameter.name]) * weight
                for parameter, weight in zip(self.space.parameters, _weights(self.space), strict=True)
            )
        except (ValueError, KeyError):
            key = -1
        index = int(np.searchsorted(self._keys, key))
        if index == len(self) or self.configuration(index) != configuration:
            raise SpaceError(
                f"`{configuration.id}` is not a valid configuration of the space `{self.space.name}`",
                hint="list the valid ones: `oppa space JOB`",
            )
        return index

    def default_order(self) -> NDArray[np.intp]:
        """Return the positions of the configurations that count as not tuned, in the order in which they are tried.

        The order prefers the largest dp, then the smallest tp, then the smallest pp, then ZeRO 0 to 3. The micro-batch and everything else
        have the framework's default, or are as near to it as job and constraints allow.
        """
        order = ("dp", "tp", "pp", "zero_stage")
        deviations = self.deviations(besides=order)
        chosen = np.flatnonzero(deviations == deviations.min(initial=len(self.space.parameters)))
        keys = [self.column(name)[chosen] for name in order if name in self.space.names]
        return chosen[np.lexsort([*reversed(keys[1:]), -keys[0]])]

    def deviations(self, *, besides: Sequence[str] = ()) -> NDArray[np.uint8]:
        """Return how many parameters of each candidate differ from the framework's defaults, shape (n,).

        Parameters in `besides` are not counted. If a job excludes a default, the nearest choice counts as the default.
        """
        counts = np.zeros(len(self), np.uint8)
        for parameter in self.space.parameters:
            if parameter.name not in besides:
                counts += ~np.isin(self.codes[parameter.name], _usual(parameter))
        return counts

    def triples(self) -> NDArray[np.intp]:
        """Return the number of each candidate's (dp, tp, pp), counted from 0, shape (n,); OPPA App. E.1 draws these uniformly."""
        numbers = np.zeros(len(self), np.int64)
        for name in ("dp", "tp", "pp"):
            numbers = numbers * len(self.space[name].values) + self.codes[name]
        return np.unique(numbers, return_inverse=True)[1]

    @functools.cached_property
    def _keys(self) -> NDArray[np.int64]:
        keys = np.zeros(len(self), np.int64)
        for parameter, weight in zip(self.space.parameters, _weights(self.space), strict=True):
            keys += self.codes[parameter.name].astype(np.int64) * weight
        return keys


def enumerate_candidates(space: SearchSpace) -> Candidates:
    """Return every valid configuration.

    Parameters are added one by one, and each constraint prunes as soon as all its names have values.

    Raises:
        SpaceError: there are more than MOST_CANDIDATES, partial ones included, or an expression cannot be computed.
    """
    if math.prod(len(parameter.values) for parameter in space.parameters) not in INTEGERS:
        raise _too_many(space, f"2^{INTEGERS.stop.bit_length() - 1} combinations of values")
    if space.listed is not None:
        return _listed(space, space.listed)
    codes: dict[str, Codes] = {}
    removed = dict.fromkeys(map(id, space.constraints), 0)
    count = 1
    for position, parameter in enumerate((None, *space.parameters)):
        if parameter is not None:
            codes, count = _join(codes, parameter, space, count)
        for constraint in space.ready(after=position):
            holds = np.broadcast_to(constraint.expression(_Columns(space.facts, space, codes)), count)
            removed[id(constraint)] = count - int(holds.sum())
            if removed[id(constraint)]:
                codes, count = {name: column[holds] for name, column in codes.items()}, int(holds.sum())
    return Candidates(space, codes, tuple(removed.values()))


def _listed(space: SearchSpace, rows: Sequence[Sequence[Value]]) -> Candidates:
    """Return the configurations of a list, each once, in the order of their keys."""
    columns = zip(space.parameters, zip(*rows, strict=True), strict=True)
    codes = {parameter.name: _codes(parameter, values) for parameter, values in columns}
    weighted = zip(space.parameters, _weights(space), strict=True)
    keys = np.sum([codes[parameter.name].astype(np.int64) * weight for parameter, weight in weighted], axis=0)
    first = np.unique(keys, return_index=True)[1]
    return Candidates(space, {name: column[first] for name, column in codes.items()}, removed=())


def _join(codes: dict[str, Codes], parameter: Parameter, space: SearchSpace, count: int) -> tuple[dict[str, Codes], int]:
    """Return the codes extended by a parameter, and the number of rows.

    Each row occurs once per choice if the parameter matters in it, else once with the default.
    """
    choices = _codes(parameter, parameter.choices)
    active = np.broadcast_to(parameter.when(_Columns(space.facts, space, codes)) if parameter.when else True, count)
    repeats = np.where(active, len(choices), 1)
    if repeats.sum() > MOST_CANDIDATES:
        raise _too_many(space, f"{MOST_CANDIDATES} configurations")
    rows = np.repeat(np.arange(count), repeats)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    joined = np.where(active[rows], choices[within], _codes(parameter, [parameter.default]))
    return {**{name: column[rows] for name, column in codes.items()}, parameter.name: joined}, len(rows)


def _codes(parameter: Parameter, values: Iterable[Value]) -> Codes:
    """Return the positions of values among those of their parameter."""
    code = {value: position for position, value in enumerate(parameter.values)}
    positions = [code[value] for value in values]
    return np.array(positions, np.uint8) if len(code) <= 256 else np.array(positions, np.uint16)


def _too_many(space: SearchSpace, most: str) -> SpaceError:
    widest = max(space.parameters, key=lambda parameter: len(parameter.choices))
    hint = f"give fewer choices under [space.parameters]: `{widest.name}` has {len(widest.choices)}"
    return SpaceError(f"the search space `{space.name}` has more than {most}", hint=hint)


class _Columns(Mapping[str, Any]):
    """Provides the values of an expression's names: facts unchanged, parameters decoded on demand."""

    def __init__(self, facts: Facts, space: SearchSpace, codes: Mapping[str, Codes]) -> None:
        self._facts, self._space, self._codes = facts, space, codes

    def __getitem__(self, name: str) -> Any:
        if name == DERIVED:
            return divide(self["global_batch"], multiply(self["dp"], self["micro_batch"]))
        if name in self._codes:
            return np.array(self._space[name].values)[self._codes[name]]
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._facts, *self._codes, DERIVED))

    def __len__(self) -> int:
        return len(self._facts) + len(self._codes) + 1


def _usual(parameter: Parameter) -> list[int]:
    """Return the codes of values that count as untuned: the default, and the choice nearest to it."""
    default = parameter.values.index(parameter.default)
    choices = [parameter.values.index(choice) for choice in parameter.choices]
    return [default, min(choices, key=lambda code: abs(code - default))]


def _weights(space: SearchSpace) -> list[int]:
    """Return the weight of each parameter's code in a candidate's key; the first parameter has the largest."""
    weights, weight = [], 1
    for parameter in reversed(space.parameters):
        weights.append(weight)
        weight *= len(parameter.values)
    return weights[::-1]
