"""Wrap Optuna's samplers as designers, one trial at a time: TPE and Gaussian processes, at the library's own settings.

Optuna gets the index of each parameter's value among those that occur: an integer if the values have an order, else a category. `dp` is
left out if the other parameters determine it. The first trials are random, drawn like the other peers'. Optuna's own would be ten, uniform
over values that rarely combine to a candidate. A suggestion may be no candidate, or taken. Then the nearest free candidate runs, by the
encoding that all models share; ties are broken at random. The candidate that ran is reported to Optuna.

A failed trial is reported as complete, with the worst throughput seen and a violated constraint. Optuna's documentation asks for this in
constrained problems (`Trial.set_constraint`); a pruned trial would not reach GPSampler at all. The constraint is log(memory / limit)
where memory was measured.

Every suggestion comes from a fresh sampler with a seed of its own, and a study of all trials so far. So a resumed search goes on as if it
had never stopped.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from experiments.baselines.random_first import RANDOM_TRIALS
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names, encode
from oppa.problem.problem import Problem
from oppa.problem.space import Parameter
from oppa.random_streams import stream
from oppa.tuning.designer import Observation, free, groups
from oppa.tuning.designers.random_search import RandomSearch

VIOLATION = 0.2
"""Assumed log memory above the limit after a failure, of which only the sign is known."""
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=0),
    "optuna-gp": lambda seed: GPSampler(seed=seed, n_startup_trials=0),
}


class OptunaStudy:
    """Implements the designers `tpe` and `optuna-gp`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, sampler: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sampler, self._seed = sampler, seed
        self._log_limit = math.log(problem.cluster.usable_bytes)
        self.space = Space(candidates)
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended."""
        self._seen += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first, then the free one nearest to Optuna's suggestion; None if none is free."""
        rows = free(len(self.space), taken)
        if not len(rows):
            return None
        if len(self._seen) < RANDOM_TRIALS:
            return self._chance.suggest(taken)
        rng = stream(self._seed, f"{self._sampler}/{len(taken)}")
        study = optuna.create_study(direction="maximize", sampler=SAMPLERS[self._sampler](int(rng.integers(2**31))))
        worst = min((seen.log_steps_per_s for seen in self._seen if seen.log_steps_per_s is not None), default=0.0)
        study.add_trials([self._frozen(seen, worst) for seen in self._seen])
        distances = self.space.distances(study.ask(self.space.distributions).params, rows)
        return int(rng.choice(rows[distances <= distances.min() + 1e-9]))

    def predict(self, candidate: int) -> None:
        """Return None, as Optuna does not publish its predictions."""

    def _frozen(self, seen: Observation, worst: float) -> optuna.trial.FrozenTrial:
        slack = min(0.0, math.log(seen.memory_bytes) - self._log_limit) if seen.memory_bytes else -1.0  # it ran, so it fits
        return optuna.trial.create_trial(
            params=self.space.parameters(seen.candidate),
            distributions=self.space.distributions,
            value=math.exp(worst if seen.log_steps_per_s is None else seen.log_steps_per_s),
            constraints={"memory": slack if seen.measured else VIOLATION},
        )


tpe, optuna_gp = (functools.partial(OptunaStudy, sampler=sampler) for sampler in SAMPLERS)
"""The designers `tpe` and `optuna-gp`."""


class Space:
    """Converts between candidates and Optuna's parameters.

    Notation (n candidates, k parameters, p encoded columns):
        positions    index of each parameter's value among those that occur    (n, k)
        points       encoded candidates                                        (n, p)
    """

    def __init__(self, candidates: Candidates) -> None:
        names = _names(candidates)
        coded = [np.unique(candidates.codes[name], return_index=True, return_inverse=True) for name in names]
        self._positions = np.stack([inverse for _, _, inverse in coded], axis=1) if names else np.zeros((len(candidates), 0), np.int64)
        self._points = encode(candidates)
        labels = [label.split("=")[0] for label in column_names(candidates)]
        self._columns = {name: [column for column, label in enumerate(labels) if label == name] for name in names}
        self._first = {name: first for name, (_, first, _) in zip(names, coded, strict=True)}
        self.distributions = {name: _distribution(candidates.space[name], len(first)) for name, first in self._first.items()}

    def __len__(self) -> int:
        return len(self._points)

    def parameters(self, candidate: int) -> dict[str, int]:
        """Return a candidate in Optuna's parameters."""
        return dict(zip(self.distributions, self._positions[candidate].tolist(), strict=True))

    def distances(self, parameters: Mapping[str, int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the squared distances between Optuna's suggestion and candidates, by number, shape (m,)."""
        apart = np.zeros(len(rows))
        for name, position in parameters.items():
            columns, like = self._columns[name], self._first[name][position]
            apart += np.square(self._points[rows][:, columns] - self._points[like, columns]).sum(axis=1)
        return apart


def _names(candidates: Candidates) -> list[str]:
    """Return the parameters that vary, without `dp` if the others distinguish all candidates."""
    names = [name for name in candidates.space.names if len(np.unique(candidates.codes[name])) > 1]
    others = [name for name in names if name != "dp"]
    return others if groups(candidates, others).max() + 1 == len(candidates) else names


def _distribution(parameter: Parameter, values: int) -> BaseDistribution:
    return CategoricalDistribution(range(values)) if parameter.scale == "one-hot" else IntDistribution(0, values - 1)
