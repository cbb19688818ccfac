"""Wrap SMAC3 (Lindauer et al. 2022): its random forest and expected improvement of log seconds per step, over the candidates alone.

The parts are those of SMAC3's `HyperparameterOptimizationFacade`: the run history with its states, the encoder that takes logarithms, the
forest and the acquisition. The facade's own maximiser and its random interleaving are left out, since they suggest configurations that are
no candidates. Instead, the acquisition is computed for every free candidate. A failed trial has the state `MEMORYOUT` or `CRASHED`, and the
cost of the slowest one.
"""

import math
from collections.abc import Set

import numpy as np
from ConfigSpace import CategoricalHyperparameter, Configuration, ConfigurationSpace, UniformIntegerHyperparameter
from numpy.typing import NDArray
from smac import Scenario
from smac.acquisition.function import EI
from smac.model.random_forest import RandomForest
from smac.runhistory import RunHistory, StatusType
from smac.runhistory.encoder import RunHistoryLogEncoder

from experiments.baselines.random_first import RandomFirst
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation

TREES = 10
"""Number of trees of the facade's forest."""


class SmacForest(RandomFirst):
    """Implements the designer `smac`."""

    stream = "smac"

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        super().__init__(problem, candidates, seed=seed)
        self._space, self._configurations = configurations(candidates)

    def _choose(self, rows: NDArray[np.int64], taken: Set[int], rng: np.random.Generator) -> int:
        """Return the free candidate with the largest expected improvement."""
        values = self._acquisition(int(rng.integers(2**31)))([self._configurations[row] for row in rows]).ravel()
        return int(rng.choice(rows[values == values.max()]))

    def _acquisition(self, seed: int) -> EI:
        """Return the acquisition; the incumbent's value is that which the forest predicts, as in SMAC's own loop."""
        forest = random_forest(self._space, trees=TREES, observations=len(self._seen), log_y=True, seed=seed)
        encoder = RunHistoryLogEncoder(Scenario(self._space, deterministic=True, seed=seed))
        encoder.runhistory = self._history()
        x, y = encoder.transform()
        forest.train(x, y)
        acquisition = EI(log=True)
        acquisition.update(model=forest, eta=float(forest.predict_marginalized(x)[0].min()), num_data=len(x))
        return acquisition

    def _history(self) -> RunHistory:
        """Return the trials in SMAC's form. The cost is the seconds of a step."""
        history = RunHistory()
        slowest = min(seen.log_steps_per_s for seen in self._seen if seen.log_steps_per_s is not None)
        for seen in self._seen:
            rate = slowest if seen.log_steps_per_s is None else seen.log_steps_per_s
            history.add(self._configurations[seen.candidate], cost=math.exp(-rate), status=_status(seen), seed=0)
        return history


def _status(seen: Observation) -> StatusType:
    if seen.measured:
        return StatusType.SUCCESS
    return StatusType.MEMORYOUT if seen.outcome == "out_of_memory" else StatusType.CRASHED


def configurations(candidates: Candidates) -> tuple[ConfigurationSpace, list[Configuration]]:
    """Return SMAC's space and every candidate in it. A parameter has the index of its value among those that occur."""
    columns: dict[str, list[int]] = {}
    parameters: list[CategoricalHyperparameter | UniformIntegerHyperparameter] = []
    for name in candidates.space.names:
        occurring, positions = np.unique(candidates.codes[name], return_inverse=True)
        if len(occurring) > 1:
            kinds = candidates.space[name].scale == "one-hot"
            values = list(range(len(occurring)))
            parameters.append(CategoricalHyperparameter(name, values) if kinds else UniformIntegerHyperparameter(name, 0, values[-1]))
            columns[name] = positions.tolist()
    space = ConfigurationSpace(space=None)
    space.add(parameters)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}]
    return space, [Configuration(space, values=row) for row in rows]


def random_forest(space: ConfigurationSpace, *, trees: int, observations: int, log_y: bool = False, seed: int) -> RandomForest:
    """Return SMAC's forest with the facade's settings.

    No tree has more leaves than observations. SMAC's own bound of 2^20 leaves allocates memory for as many, a tenth of a second per tree.
    """
    return RandomForest(
        space,
        log_y=log_y,
        n_trees=trees,
        ratio_features=1.0,
        min_samples_split=2,
        min_samples_leaf=1,
        max_leaf_nodes=max(2, observations),
        n_jobs=1,
        seed=seed,
    )
