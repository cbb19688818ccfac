"""Optuna's samplers as designers, asked and told one trial at a time: TPE and Gaussian processes, at the library's own settings.

Optuna sees the position of each parameter's value among those that occur, as an integer where values have an order and as a category
where they have none. `dp` is left out where the others decide it. What it suggests may be no candidate, or taken: then the nearest free
candidate runs, by the encoding that all models share, and chance chooses among equally near ones. Optuna is told what ran.

A trial that did not run is a complete trial with the worst throughput seen and a violated constraint, as Optuna's documentation asks of
constrained problems (`Trial.set_constraint`; a pruned trial would not reach GPSampler at all). The constraint is log(memory / limit)
where memory was measured.

Every suggestion comes from a fresh sampler with a seed of its own and a study of all that was told, so a resumed search goes on as if
never stopped.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from oppa.problem.candidates import Candidates
from oppa.problem.encoding import ONE_HOT, column_names, encode
from oppa.streams import stream
from oppa.tuning.designer import Observation, free, groups
from oppa.tuning.designers.uniform import Uniform

RANDOM_TRIALS = 5
"""Drawn as the other peers draw theirs; Optuna's own would be ten, uniform over values of which most combinations are no candidate."""
VIOLATION = 0.2
"""Log memory above the limit that a failure stands for: all we know is that it is more than zero."""
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=0),
    "optuna-gp": lambda seed: GPSampler(seed=seed, n_startup_trials=0),
}


class OptunaStudy:
    """The designers `tpe` and `optuna-gp`."""

    def __init__(self, sampler: str, candidates: Candidates, *, memory_limit_bytes: int, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sampler, self._seed = sampler, seed
        self._log_limit = math.log(memory_limit_bytes)
        self.space = Space(candidates)
        self._chance = Uniform(candidates, seed=seed)
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Keep how trials ended."""
        self._seen += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """Chance at first, then the free candidate nearest to what Optuna suggests."""
        rows = free(len(self.space), taken)
        if not len(rows):
            return None
        if len(self._seen) < RANDOM_TRIALS:
            return self._chance.suggest(taken)
        rng = stream(self._seed, f"{self._sampler}/{len(taken)}")
        study = optuna.create_study(direction="maximize", sampler=SAMPLERS[self._sampler](int(rng.integers(2**31))))
        worst = min((seen.log_steps_per_s for seen in self._seen if seen.log_steps_per_s is not None), default=0.0)
        study.add_trials([self._told(seen, worst) for seen in self._seen])
        distances = self.space.distances(study.ask(self.space.distributions).params, rows)
        return int(rng.choice(rows[distances <= distances.min() + 1e-9]))

    def predict(self, candidate: int) -> None:
        """Optuna keeps what it expects to itself."""

    def _told(self, seen: Observation, worst: float) -> optuna.trial.FrozenTrial:
        slack = min(0.0, math.log(seen.memory_bytes) - self._log_limit) if seen.memory_bytes else -1.0  # it ran, so it fits
        return optuna.trial.create_trial(
            params=self.space.parameters(seen.candidate),
            distributions=self.space.distributions,
            value=math.exp(worst if seen.log_steps_per_s is None else seen.log_steps_per_s),
            constraints={"memory": slack if seen.measured else VIOLATION},
        )


class Space:
    """The candidates as Optuna sees them.

    Notation (n candidates, k parameters, p encoded columns):
        positions    of each parameter's value among those that occur    (n, k)
        points       encoded                                             (n, p)
    """

    def __init__(self, candidates: Candidates) -> None:
        names = _names(candidates)
        coded = [np.unique(candidates.codes[name], return_index=True, return_inverse=True) for name in names]
        self._positions = np.stack([inverse for _, _, inverse in coded], axis=1) if names else np.zeros((len(candidates), 0), np.int64)
        self._points = encode(candidates)
        labels = [label.split("=")[0] for label in column_names(candidates)]
        self._columns = {name: [column for column, label in enumerate(labels) if label == name] for name in names}
        self._first = {name: first for name, (_, first, _) in zip(names, coded, strict=True)}
        self.distributions = {name: _distribution(name, len(first)) for name, first in self._first.items()}

    def __len__(self) -> int:
        return len(self._points)

    def parameters(self, candidate: int) -> dict[str, int]:
        """What Optuna calls a candidate."""
        return dict(zip(self.distributions, self._positions[candidate].tolist(), strict=True))

    def distances(self, parameters: Mapping[str, int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """From what Optuna suggests to candidates, by number, squared, shape (m,)."""
        apart = np.zeros(len(rows))
        for name, position in parameters.items():
            columns, like = self._columns[name], self._first[name][position]
            apart += np.square(self._points[rows][:, columns] - self._points[like, columns]).sum(axis=1)
        return apart


def _names(candidates: Candidates) -> list[str]:
    """The parameters that vary; without `dp` where the others tell all candidates apart."""
    names = [name for name in candidates.space.names if len(np.unique(candidates.codes[name])) > 1]
    others = [name for name in names if name != "dp"]
    return others if groups(candidates, others).max() + 1 == len(candidates) else names


def _distribution(name: str, values: int) -> BaseDistribution:
    return CategoricalDistribution(range(values)) if name in ONE_HOT else IntDistribution(0, values - 1)
